"""The worker's own loop: what it looks at again and again."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pagoda_sidecar import worker


async def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    num_looks, has_looked_again = 0, asyncio.Event()

    def refresh() -> bool:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 1:
            raise RecursionError
        has_looked_again.set()
        return False

    monkeypatch.setattr(worker, "LOOK_AGAIN_SECONDS", 0.01)
    sidecar = SimpleNamespace(update_gauges=lambda: None, follow_pool=lambda: None, off_reason="")
    pool_files, shares = SimpleNamespace(refresh=refresh), SimpleNamespace(refresh=lambda: False)
    parts = (cast(Any, part) for part in (None, sidecar, pool_files, shares))
    async with worker._looking_again(*parts):
        await asyncio.wait_for(has_looked_again.wait(), 5)
