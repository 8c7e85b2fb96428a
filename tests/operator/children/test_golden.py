import pytest

from tests.operator.children.golden_files import FOLDER, path_of, text_of
from tests.operator.children.pools import POOLS


@pytest.mark.parametrize("name", POOLS)
def test_the_children_of_a_pool_are_what_its_golden_file_says(name: str) -> None:
    assert text_of(name) == path_of(name).read_text("utf-8"), (
        "if this is meant: python -m tests.operator.children.golden_files"
    )


def test_every_golden_file_is_some_pools() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(POOLS)
