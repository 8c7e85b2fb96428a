import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_operator.children.quantities import cpu, memory, whole_mebi
from pagoda_protocol.pool.quantities import MEBI, parse_bytes, parse_millicores


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0"), (1, "1"), (1000, "1k"), (1024, "1Ki"), (1500, "1500"), (24 * 10**9, "23437500Ki"),
        (3 * 10**6 + 500, "3000500"), (7 * 10**9 + 10**3, "7000001k"), (2**30, "1Gi"), (1536 * MEBI, "1536Mi"),
    ],
)  # fmt: skip
def test_memory_is_written_as_the_api_server_stores_it(num_bytes: int, text: str) -> None:
    assert memory(num_bytes) == text


@pytest.mark.parametrize(("millicores", "text"), [(1, "1m"), (1000, "1"), (3500, "3500m"), (12000, "12")])
def test_cpu_is_written_as_the_api_server_stores_it(millicores: int, text: str) -> None:
    assert cpu(millicores) == text


@given(st.integers(0, 2**60), st.integers(1, 10**9))
def test_quantities_read_back_as_they_were(num_bytes: int, millicores: int) -> None:
    assert parse_bytes(memory(num_bytes)) == num_bytes
    assert parse_millicores(cpu(millicores)) == millicores
    assert 0 <= whole_mebi(num_bytes) - num_bytes < MEBI
