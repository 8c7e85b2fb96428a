"""A pool of real programs with a small random model, one for each module that asks.

The model is large enough that a prompt's blocks are worth waiting for: with the tiniest one computing is sooner than
any tier, and stories about tiers would show none.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import tiny_checkpoint
from tests.support.pods import Pods, manifest, running_pods

StartPods = Callable[..., Pods]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("checkpoint"), hidden_size=512, num_hidden_layers=6, num_attention_heads=8,
        head_dim=64, intermediate_size=1536,
    )  # fmt: skip


@pytest.fixture(scope="module")
def start_pods(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartPods]:
    """Start pools in exact mode that end with the module.

    The device holds 128 blocks (12 MiB at 96 KiB a block), so that a few prompts push an older one out.
    """
    with ExitStack() as stack:

        def start(*, with_router: bool = False, exact: bool = True, **options: Any) -> Pods:
            settings: dict[str, Any] = {
                "source": {"local": {"path": str(checkpoint)}},
                "kv_memory": "12Mi",
                "ram": "96Mi",
                "pool_memory": "256Mi",
                "max_model_tokens": 1024,
                "max_batch_tokens": 64,
                "max_sequences": 8,
            }
            folder = tmp_path_factory.mktemp("pods")
            document = manifest(**(settings | options))
            return stack.enter_context(running_pods(folder, document, threads=1, exact=exact, with_router=with_router))

        yield start
