"""The GGUF container: metadata and tensors of one file, read through a memory map. Knows no torch and no model.

The PyPI package `gguf` builds a NumPy array per string, which takes seconds for a vocabulary; here strings are cut
straight out of the map. Its dequantisation is used as it is. Source: the GGUF specification, versions 2 and 3.

    magic "GGUF" · version u32 · tensor count u64 · pair count u64 · pairs · tensor infos · padding · tensor data
"""

import math
import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda_engine.model.errors import CheckpointError, UnsupportedModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies. `shape` is row-major (rows first), the reverse of how the file writes it."""

    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the start of the file, bytes


class GgufFile:
    """One GGUF file: `metadata` by key, `tensors` by name, values on demand.

    Raises:
        CheckpointError: from the constructor, if the file is missing, truncated or no GGUF.
    """

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        try:
            self._parse()
        except (struct.error, IndexError, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
            raise CheckpointError(f"{path}: truncated or damaged GGUF header ({error!r})") from error
        self._check_extent()

    def _parse(self) -> None:
        data = self._data
        if data[:4] != b"GGUF":
            raise CheckpointError(f"{self.path}: not a GGUF file")
        version, num_tensors, num_pairs = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise UnsupportedModelError(f"{self.path}: GGUF version {version}; supported are 2 and 3")
        self._at = 24
        self.metadata = {}
        for _ in range(num_pairs):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        tensors = {}
        for _ in range(num_tensors):
            name = self._string()
            num_dimensions = self._scalar("I")
            shape = tuple(reversed([self._scalar("Q") for _ in range(num_dimensions)]))
            tensors[name] = GgufTensor(shape, self._scalar("I"), self._scalar("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-self._at // alignment) * alignment
        self.tensors = {name: GgufTensor(one.shape, one.type_id, start + one.offset) for name, one in tensors.items()}

    def _check_extent(self) -> None:
        for name, tensor in self.tensors.items():
            if tensor.offset + self._num_bytes(tensor) > len(self._data):
                raise CheckpointError(f"{self.path}: truncated, tensor {name} reaches past the end of the file")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._data, self._at)
        start = self._at + 8
        end = start + length
        if end > len(self._data):
            raise IndexError("a string reaches past the end of the file")
        self._at = end
        return self._data[start:end].decode("utf-8")

    def _value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self._string()
        if type_id != _ARRAY:
            return self._scalar(_SCALARS[type_id])
        element, length = struct.unpack_from("<IQ", self._data, self._at)
        self._at += 12
        if length > len(self._data) - self._at:
            raise IndexError("an array reaches past the end of the file")
        if element in (_STRING, _ARRAY):
            return [self._value(element) for _ in range(length)]
        layout = f"<{length}{_SCALARS[element]}"
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return list(values)

    @cached_property
    def _formats(self) -> Any:
        import gguf  # late: metadata alone does not need it

        return gguf

    def _num_bytes(self, tensor: GgufTensor) -> int:
        try:
            kind = self._formats.GGMLQuantizationType(tensor.type_id)
        except ValueError as error:
            raise UnsupportedModelError(f"{self.path}: unknown tensor type {tensor.type_id}") from error
        block, size = self._formats.GGML_QUANT_SIZES[kind]
        return math.prod(tensor.shape) // int(block) * int(size)

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """Return one tensor dequantised to fp32, in its row-major shape.

        Raises:
            CheckpointError: no such tensor.
            UnsupportedModelError: its type cannot be dequantised here.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.path}: tensor {name} is missing")
        formats = self._formats
        kind = formats.GGMLQuantizationType(tensor.type_id)
        raw = np.frombuffer(self._data, np.uint8, self._num_bytes(tensor), tensor.offset)
        if kind in (formats.GGMLQuantizationType.F32, formats.GGMLQuantizationType.F16):
            stored = np.float32 if kind == formats.GGMLQuantizationType.F32 else np.float16
            return raw.view(stored).astype(np.float32).reshape(tensor.shape)
        block, size = formats.GGML_QUANT_SIZES[kind]
        rows = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * size)
        try:
            result: npt.NDArray[np.float32] = formats.quants.dequantize(rows, kind)
        except NotImplementedError as error:
            raise UnsupportedModelError(f"{self.path}: tensor {name} has type {kind.name}") from error
        return result.reshape(tensor.shape)
