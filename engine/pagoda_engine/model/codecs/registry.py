"""Codecs by the name that manifests, flags and namespaces use."""

from collections.abc import Mapping

from pagoda_engine.model.codecs.fp8 import Fp8Codec
from pagoda_engine.model.codecs.int4 import Int4Codec
from pagoda_engine.model.codecs.int8 import Int8Codec
from pagoda_engine.model.codecs.interface import Codec, PageShape
from pagoda_engine.model.codecs.nvfp4 import Nvfp4Codec
from pagoda_engine.model.codecs.raw import RawCodec
from pagoda_engine.model.errors import UnsupportedModelError

_KNOWN: tuple[type[Codec], ...] = (RawCodec, Int8Codec, Int4Codec, Fp8Codec, Nvfp4Codec)
CODECS: Mapping[str, type[Codec]] = {codec.name: codec for codec in _KNOWN}


def make_codec(name: str, shape: PageShape) -> Codec:
    """Return the codec called `name` for pages of `shape`.

    Raises:
        UnsupportedModelError: no codec has that name, or it cannot write pages of this shape.
    """
    if name not in CODECS:
        raise UnsupportedModelError(f"cache.codec {name!r}; supported are {', '.join(CODECS)}")
    return CODECS[name](shape)
