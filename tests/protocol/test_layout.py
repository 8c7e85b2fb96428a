from pathlib import Path

PARTS = ("protocol", "runtime", "sidecar", "engine", "router", "cli", "operator")


def shadowing(root):
    """The parts that Python started in `root` would import instead of a library's module of the same name."""
    return [part for part in PARTS if (root / part / "__init__.py").exists()]


def test_no_part_shadows_a_module_of_the_standard_library():
    assert shadowing(Path(__file__).parents[2]) == []


def test_a_part_that_does_is_found(tmp_path):
    (tmp_path / "operator").mkdir()
    (tmp_path / "operator" / "__init__.py").touch()
    assert shadowing(tmp_path) == ["operator"]
