"""The engine's command line. `pagoda_protocol.pool.arguments` writes it; a contract test holds the two together.

Rules: no flag has a short form or an abbreviation, none has a default that the pool's spec does not know, and nothing
heavy is imported here: a wrong flag is reported in milliseconds.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagoda_protocol.records import CODECS
from pagoda_runtime.arguments import folder, port, seconds, text, whole_number

KV_DTYPES = ("Auto", "Float32", "BFloat16")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Arguments:
    """What one engine is told when it starts."""

    name: str
    """The pod's name; it stands in logs."""
    host: str
    port: int
    """0: a free one."""
    model_name: str
    """What clients put in `model`."""
    model_package: str | None
    """An installed Python package that holds the weights; exactly one of this and `model_path`."""
    model_path: Path | None
    """A checkpoint folder or GGUF file."""
    volume: Path | None
    """The folder shared with the sidecar; None: no tiers below the device."""
    secret_dir: Path
    """Holds `pool` and `digest`."""
    tenants_dir: Path | None
    """Holds `tenants.json`; None: no API key is asked for."""
    settings_dir: Path | None
    """Holds `live.json`; None: its defaults."""
    codec: str
    """How KV is encoded below the device."""
    device: str
    """cpu | cuda: the first GPU."""
    kv_memory_bytes: int
    block_tokens: int
    kv_dtype: str
    """Auto | Float32 | BFloat16."""
    max_model_tokens: int
    """Prompt and answer together."""
    max_batch_tokens: int
    """Tokens computed in one step."""
    max_sequences: int
    """Sequences in one step."""
    threads: int
    drain_seconds: float
    exact: bool
    """A block's KV is a function of its tokens alone (DESIGN §8, Numerics)."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m pagoda_engine`."""
    parser = argparse.ArgumentParser(
        prog="pagoda_engine",
        description="Serve one model over OpenAI's API with a paged, prefix-shared, tiered KV cache.",
        allow_abbrev=False,
    )
    size = whole_number(1)
    parser.add_argument("--name", type=text, required=True, help="the pod's name")
    parser.add_argument("--host", type=text, required=True, help="the address to listen on")
    parser.add_argument("--port", type=port, required=True, help="the port to listen on; 0 takes a free one")
    parser.add_argument("--model-name", type=text, required=True, help='what clients put in "model"')
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model-package", type=text, help="an installed Python package that holds the weights")
    source.add_argument("--model-path", type=folder, help="a checkpoint folder or a GGUF file")
    parser.add_argument("--volume", type=folder, help="the folder shared with the sidecar; without it: no tiers")
    parser.add_argument("--secret-dir", type=folder, required=True, help="the folder that holds pool and digest")
    parser.add_argument("--tenants-dir", type=folder, help="the folder that holds tenants.json; without it: no keys")
    parser.add_argument("--settings-dir", type=folder, help="the folder that holds live.json; without it: defaults")
    parser.add_argument("--codec", choices=tuple(CODECS), required=True, help="how KV is encoded below the device")
    parser.add_argument("--device", choices=DEVICES, required=True, help="what computes and holds the KV cache")
    parser.add_argument("--kv-memory-bytes", type=size, required=True, help="bytes of KV cache on the device")
    parser.add_argument("--block-tokens", type=size, required=True, help="tokens per block")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, required=True, help="the type of keys and values")
    parser.add_argument("--max-model-tokens", type=size, required=True, help="tokens of a prompt and its answer")
    parser.add_argument("--max-batch-tokens", type=size, required=True, help="tokens computed in one step")
    parser.add_argument("--max-sequences", type=size, required=True, help="sequences in one step")
    parser.add_argument("--threads", type=size, required=True, help="threads that compute")
    parser.add_argument("--drain-seconds", type=seconds, required=True, help="how long streams may go on at the end")
    parser.add_argument("--exact", action="store_true", help="KV is a function of a block's tokens alone")
    return parser


def parse(argv: Sequence[str] | None = None) -> Arguments:
    """Read the command line; a mistake ends the process with status 2 and says what would be right."""
    return Arguments(**vars(build_parser().parse_args(argv)))
