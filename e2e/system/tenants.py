"""A pool with tenants whose names and keys can be recognised wherever they should not be."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagoda_protocol.tenants import key_hash
from tests.support.pods import Pods, manifest, running_pods
from tests.support.program import Answer, Program

OWNER = "zebrafish-holdings"
OTHERS = ("quagga-partners", "okapi-brothers", "tapir-works", "numbat-society")
NAMES = (OWNER, *OTHERS)
BLOCK = 16


def api_key(name: str) -> str:
    """Return the key of a tenant."""
    return f"sk-secret-{name}"


def write_tenants(folder: Path, **shares: float) -> Path:
    """Write the tenants file under `folder` and return that."""
    entries = [{"name": name, "keyHashes": [key_hash(api_key(name))], **shares} for name in NAMES]
    (folder / "tenants.json").write_text(json.dumps({"tenants": entries}))
    return folder


@contextlib.contextmanager
def tenant_pods(folder: Path, checkpoint: Path, public_texts: tuple[str, ...] = (), **options: Any) -> Iterator[Pods]:
    """Run a small pool in exact mode, with a router and every tier, for `NAMES` alone."""
    settings: dict[str, Any] = {
        "source": {"local": {"path": str(checkpoint)}}, "kv_memory": "12Mi", "ram": "64Mi", "disk": "64Mi",
        "pool_memory": "256Mi", "max_model_tokens": 1024, "max_batch_tokens": 64, "max_sequences": 8, "idle_seconds": 1,
    }  # fmt: skip
    document = manifest(**(settings | options))
    document["spec"]["tenancy"] = {"sharedPrefixes": list(public_texts)}
    tenants_dir = folder / "tenants"
    tenants_dir.mkdir()
    write_tenants(tenants_dir)
    with running_pods(
        folder, document, threads=1, exact=True, with_router=True, tenants_dir=tenants_dir
    ) as pods:  # fmt: skip
        yield pods


def ask(program: Program, name: str, prompt: str | list[int], **options: Any) -> Answer:
    """Have a tenant complete a prompt."""
    answer = program.complete(prompt, api_key=api_key(name), **({"max_tokens": 4, "ignore_eos": True} | options))
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"]
    return answer


def reusable(answer: Answer) -> int:
    """Tokens that a repeat of this prompt can reuse: whole blocks, and the last token is always computed."""
    return int((answer.usage["prompt_tokens"] - 1) // BLOCK * BLOCK)


def is_cold(answer: Answer) -> bool:
    """Whether all of its prompt was computed."""
    return bool(answer.sources["compute"] == answer.usage["prompt_tokens"])
