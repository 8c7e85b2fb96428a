"""The book returns to nothing however reservations end."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_router.pods import Pod
from pagoda_router.reservations import Book

PODS = [Pod(f"p{i}", f"h:{i + 1}", "h:9") for i in range(3)]


def test_an_error_releases_what_was_reserved() -> None:
    book = Book()
    with contextlib.suppress(RuntimeError), book.reserved(PODS[0], 1.5):
        assert book.outstanding_seconds(PODS[0]) == 1.5
        raise RuntimeError
    assert book.outstanding_seconds(PODS[0]) == 0
    book.check_integrity()


@given(st.lists(st.tuples(st.sampled_from(PODS), st.floats(0, 1e6), st.booleans()), max_size=40))
def test_sums_are_those_of_the_open_reservations(steps: list[tuple[Pod, float, bool]]) -> None:
    book = Book()
    open_ones: list[tuple[Pod, float, contextlib.AbstractContextManager[None]]] = []
    for pod, seconds, is_end in steps:
        if is_end and open_ones:
            open_ones.pop(len(open_ones) // 2)[2].__exit__(None, None, None)
        else:
            reservation = book.reserved(pod, seconds)
            reservation.__enter__()
            open_ones.append((pod, seconds, reservation))
        book.check_integrity()
        for each in PODS:
            expected = sum(seconds for pod, seconds, _ in open_ones if pod == each)
            assert book.outstanding_seconds(each) == pytest.approx(expected, abs=1e-3)
    for _, _, reservation in open_ones:
        reservation.__exit__(None, None, None)
    assert [book.outstanding_seconds(pod) for pod in PODS] == [0, 0, 0]
    assert [book.num_outstanding(pod) for pod in PODS] == [0, 0, 0]
    book.check_integrity()
