"""Numerics and accounting for each codec from each tier (DESIGN §8; CASES E7, E27).

One real pod per codec. A parked session is in RAM, on disk and, used twice, in the pool; taking away the nearer tiers
shows each of the others. With Raw the tokens are the cold ones. A lossy codec's tokens may be others, but the same ones
from every tier: a block is encoded once, and what was encoded is what every tier holds.
"""

import pytest

from e2e.system.conftest import StartPods
from e2e.system.stories import demand, shown, wait_parked, wait_settled
from pagoda_protocol.metrics import SOURCES
from pagoda_protocol.records import CODECS
from tests.support.pods import Pods
from tests.support.program import Answer

BLOCK = 16
PROMPT = "Under the pagoda's third roof hung a bell that nobody rang, for its rope had been cut in a year of war. " * 6


def ask(pods: Pods, prompt: str) -> Answer:
    engine = pods.engine("chat-0")
    before = {source: engine.metric("pagoda_prompt_tokens_total", source=source) for source in SOURCES}
    answer = engine.complete(prompt, max_tokens=32, ignore_eos=True)
    pods.wait_idle("chat-0")
    counted = {
        source: engine.metric("pagoda_prompt_tokens_total", source=source) - before[source] for source in SOURCES
    }
    assert counted == dict(answer.sources), "what the client was told is what was counted"
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"]
    return answer


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_e7_e27_each_tier_gives_the_same_tokens_and_says_so(start_pods: StartPods, codec: str) -> None:
    pods = start_pods(codec=codec, disk="64Mi", idle_seconds=1)

    def story(salt: str) -> None:
        prompt = f"{salt}{PROMPT}"
        cold = ask(pods, prompt)
        reused = int((cold.usage["prompt_tokens"] - 1) // BLOCK * BLOCK)
        device = ask(pods, prompt)
        assert device.text == cold.text
        demand(device.sources["device"] == reused, device.sources)
        wait_parked(pods)
        ram = ask(pods, prompt)
        if codec == "Raw":
            assert ram.text == cold.text
        demand(ram.sources["ram"] == reused, ram.sources)
        for tier, is_disk_too in (("disk", False), ("pool", True)):
            wait_parked(pods)
            wait_settled(pods, reused // BLOCK)
            pods.take_away("chat-0", is_disk_too=is_disk_too)
            answer = ask(pods, prompt)
            demand(answer.sources[tier] == reused, (tier, answer.sources))
            assert answer.text == ram.text, tier

    shown(story)
    assert pods.sidecar("chat-0").metric("pagoda_integrity_failures_total") == 0
