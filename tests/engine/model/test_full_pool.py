"""E10: quantised blocks come back the same into a device pool that is full to the last page as into a free one."""

from pathlib import Path

import pytest

from pagoda_engine.core.engine import Engine
from pagoda_engine.core.request import NewRequest
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.codecs.registry import CODECS
from pagoda_engine.model.runner import TorchModelRunner
from pagoda_runtime.metrics import Metrics
from tests.engine.core.bench import Bench, Clock, Event, SteppedJob
from tests.engine.core.fake_tiers import FakeTiers
from tests.engine.model.runners import make_runner
from tests.support.checkpoints import tiny_checkpoint

BLOCK = 16
# Four whole blocks and a half; the answer stays within the fifth, so that no block of it goes below and comes back.
PROBE = [(7 * number) % 251 for number in range(4 * BLOCK + 6)]
NUM_NEW = 8
SETTINGS = EngineSettings(
    max_model_tokens=160, max_batch_tokens=32, max_sequences=8, growth_blocks=0, weigh_loads=False
)


class RealBench(Bench):
    """The core's bench with a real model in the oracle's place."""

    def __init__(self, runner: TorchModelRunner, tiers: FakeTiers) -> None:
        self.clock = Clock()
        self.tiers = tiers
        self.jobs: list[SteppedJob] = []
        self.metrics = Metrics()
        self.requests: dict[str, NewRequest] = {}
        self.events: dict[str, Event] = {}
        self.engine = Engine(runner, SETTINGS, self.metrics, tiers, self.clock, self._make_workers)
        tiers.checkpoint = self._pause_current


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_e10_a_full_pool_changes_no_token_under_any_codec(folder: Path, codec: str) -> None:
    def bench(num_pages: int) -> RealBench:
        runner = make_runner(folder, exact=True, num_tokens=num_pages * BLOCK, codec=codec)
        tiers.payload_bytes = runner.facts.payload_bytes
        return RealBench(runner, tiers)

    tiers = FakeTiers()
    cold = bench(64)
    first = cold.submit(PROBE, max_tokens=NUM_NEW)
    cold.run()
    assert len(tiers.ram) == 4

    free = bench(64)
    alone = free.submit(PROBE, max_tokens=NUM_NEW)
    free.run()
    assert free.sources(alone) == {"ram": 4 * BLOCK, "compute": 6}
    expected = free.events[alone].tokens
    if codec == "Raw":
        assert expected == cold.events[first].tokens

    full = bench(20)
    num_full = num_probes = 0
    for count in range(40):
        full.submit([count, *PROBE[1:40]], max_tokens=60)  # grows until there is no page left
        if count % 4 == 3:
            full.submit(PROBE, max_tokens=NUM_NEW, request_id=f"probe {count}")
    while not full.engine.is_idle:
        full.step()
        num_full += full.engine.stats().num_free == full.engine.stats().num_cached == 0
        full.finish_jobs()
    for name, event in full.events.items():
        if name.startswith("probe") and event.sources is not None and event.sources["ram"] == 4 * BLOCK:
            assert event.tokens == expected, name
            num_probes += 1
    assert num_full > 20, "the pool was never full"
    assert num_probes >= 3, "no probe came from below"
    assert full.value("pagoda_preemptions_total") > 0
