"""Codecs by the name that manifests, flags and namespaces use."""

from collections.abc import Mapping

from pagoda_engine.model.codecs.int8 import Int8Codec
from pagoda_engine.model.codecs.interface import Codec, PageShape
from pagoda_engine.model.codecs.raw import RawCodec
from pagoda_engine.model.errors import UnsupportedModelError

CODECS: Mapping[str, type[Codec]] = {codec.name: codec for codec in (RawCodec, Int8Codec)}


def make_codec(name: str, shape: PageShape) -> Codec:
    """Return the codec called `name` for pages of `shape`.

    Raises:
        UnsupportedModelError: no codec has that name, or it cannot write pages of this shape.
    """
    if name not in CODECS:
        raise UnsupportedModelError(f"cache.codec {name!r}; supported are {', '.join(CODECS)}")
    return CODECS[name](shape)  # type: ignore[call-arg]
