"""The start-up test of a codec: a fixed page must become the bytes, and the bytes the page, that they became when the
codec was written.

1. What a pool of engines shares is only as sound as their agreement on bytes. A kernel, an instruction set or a library
   that rounds otherwise must be found before the first block is stored.
2. An engine that fails does not start: it is the machine or the build, and to serve without tiers would hide that.
3. The digests stand here as constants. Whoever changes what a codec writes sees the test fail, raises its revision and
   writes the new digests down; records of the old revision are then never found and age out.
"""

import hashlib

import torch

from pagoda_engine.model.codecs.interface import PAGE_DTYPES, PageShape
from pagoda_engine.model.codecs.registry import make_codec
from pagoda_engine.model.errors import CodecError

# (codec, KV dtype) → (revision, SHA-256 over payload and decoded page, its first 16 hex digits)
FROZEN: dict[tuple[str, str], tuple[int, str]] = {
    ("Raw", "Float32"): (1, "218bf9fd600216b9"),
    ("Raw", "BFloat16"): (1, "a90d4cf892fc977f"),
    ("Int8", "Float32"): (1, "55b2f5a1d9878e8d"),
    ("Int8", "BFloat16"): (1, "542711984c773b40"),
    ("Int4", "Float32"): (1, "1cf04f2b25e7c51d"),
    ("Int4", "BFloat16"): (1, "13afff35485c653a"),
    ("Fp8", "Float32"): (1, "18b677bbf7b98978"),
    ("Fp8", "BFloat16"): (1, "f732f8296a7bcc09"),
    ("Nvfp4", "Float32"): (2, "428446874e4443d9"),
    ("Nvfp4", "BFloat16"): (2, "9b53db9a1ae40496"),
}
_LAYERS, _HEADS, _TOKENS, _CHANNELS = 2, 2, 16, 32


def check_codec(name: str, kv_dtype: str, device: torch.device) -> None:
    """Encode and decode the fixed page. Takes milliseconds.

    Raises:
        CodecError: other bytes came out than were frozen.
        UnsupportedModelError: there is no such codec.
    """
    revision, digest = measure(name, kv_dtype, device)
    if FROZEN.get((name, kv_dtype)) != (revision, digest):
        raise CodecError(
            f"cache.codec {name} fails its self-test on this machine with KV dtype {kv_dtype}: "
            f"revision {revision} gives {digest}, expected {FROZEN.get((name, kv_dtype))}"
        )


def measure(name: str, kv_dtype: str, device: torch.device) -> tuple[int, str]:
    """Return the codec's revision and the digest of what it makes of the fixed page."""
    dtype = PAGE_DTYPES[kv_dtype]
    codec = make_codec(name, PageShape(_LAYERS, _HEADS, _TOKENS, _CHANNELS, dtype))
    page = fixed_page(dtype).to(device)
    payload = torch.empty(1, codec.payload_bytes, dtype=torch.uint8, device=device)
    codec.encode(page, payload)
    decoded = torch.empty_like(page)
    codec.decode(payload, decoded)
    digest = hashlib.sha256(payload.cpu().numpy().tobytes())
    digest.update(decoded.cpu().view(torch.uint8).numpy().tobytes())
    return codec.revision, digest.hexdigest()[:16]


def fixed_page(dtype: torch.dtype) -> torch.Tensor:
    """Return (1, layers, 2, heads, tokens, channels) computed exactly: outliers, zeros, offsets, scales."""
    count = _LAYERS * 2 * _HEADS * _TOKENS * _CHANNELS
    place = torch.arange(count, dtype=torch.int64)
    mixed = (place * 2654435761) % (1 << 32)  # Knuth's multiplicative hash
    values = (mixed >> 8).double() / (1 << 23) - 1.0  # in [-1, 1), exact
    channel = place % _CHANNELS
    values[channel == 3] *= 64.0
    values[channel == 5] += 17.0
    values[channel == 7] = 0.0
    values[channel == 9] = -2.5
    plane = place // (_TOKENS * _CHANNELS)
    scale = (torch.ones_like(plane) << (5 * plane)).double() / (1 << 18)
    return (values * scale).to(dtype).view(1, _LAYERS, 2, _HEADS, _TOKENS, _CHANNELS)
