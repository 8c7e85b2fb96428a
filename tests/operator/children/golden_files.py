"""`python -m tests.operator.children.golden_files` writes the golden files anew; read the difference, then commit."""

from pathlib import Path

import yaml

from tests.operator.children.pools import POOLS, children_of

FOLDER = Path(__file__).parent / "golden"


def text_of(name: str) -> str:
    """Return the children of a pool as one YAML text."""
    return yaml.safe_dump_all(list(children_of(POOLS[name]).values()), sort_keys=False, allow_unicode=True, width=120)


def path_of(name: str) -> Path:
    """Return where a pool's children stand."""
    return FOLDER / f"{name}.yaml"


if __name__ == "__main__":
    for pool_name in POOLS:
        path_of(pool_name).write_text(text_of(pool_name), "utf-8")
