"""The namespace: everything that must be equal for one pod's KV bytes to mean the same on another."""

import hashlib
from dataclasses import dataclass

from pagoda_protocol.canonical import canonical_json

NAMESPACE_BYTES = 32
SCHEMA = 1
# Raised with any change to how a block's payload is laid out in memory.
LAYOUT_REVISION = 1


@dataclass(frozen=True)
class Namespace:
    """The identity of KV bytes. Digests are hex SHA-256.

    `config_digest` covers every field the decoder reads (rope, window, eps, activation, …); `weights_digest` covers
    the checkpoint's bytes and never its name.
    """

    config_digest: str
    weights_digest: str
    kv_dtype: str  # Float32 | BFloat16
    block_tokens: int
    adapter_digest: str | None = None
    weight_values: str = "None"
    codec: str = "Raw"
    layout_revision: int = LAYOUT_REVISION

    def digest(self) -> bytes:
        """Return the 32-byte namespace `ns`."""
        return hashlib.sha256(
            canonical_json(
                {
                    "schema": SCHEMA,
                    "config_digest": self.config_digest,
                    "weights_digest": self.weights_digest,
                    "adapter_digest": self.adapter_digest,
                    "weight_values": self.weight_values,
                    "kv_dtype": self.kv_dtype,
                    "block_tokens": self.block_tokens,
                    "codec": self.codec,
                    "layout_revision": self.layout_revision,
                }
            )
        ).digest()
