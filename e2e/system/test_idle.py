"""A session that nobody touches leaves a real engine's device, and comes back with the same tokens (CASES E2, E7)."""

import json

import pytest

from e2e.system.conftest import StartPods
from e2e.system.stories import demand, eventually, shown
from pagoda_protocol.live import LIVE_FILE
from tests.support.pods import Pods

PROMPT = (
    "The ferryman asked each passenger for a word instead of a coin, and by the end of the summer he had collected "
    "enough of them to begin a story, which he told to nobody but the river on the way back. It went like this: "
)
NEW_TOKENS = 32
NEVER = 3600


@pytest.fixture(scope="module")
def pods(start_pods: StartPods) -> Pods:
    return start_pods(idle_seconds=NEVER)


def write_idle_seconds(pods: Pods, seconds: float) -> None:
    """As a mounted ConfigMap changes: by a rename, while the engine runs."""
    path = pods.folder / "settings" / LIVE_FILE
    new = path.with_suffix(".new")
    new.write_text(json.dumps(json.loads(path.read_text()) | {"idleSeconds": seconds}))
    new.rename(path)


def test_an_idle_session_leaves_the_device_once_its_time_is_set_and_comes_back_from_ram(pods: Pods) -> None:
    engine = pods.engine("chat-0")

    def num_there() -> float:
        """Blocks on the device, those that a store holds among them."""
        return sum(engine.metric("pagoda_blocks", state=state) for state in ("cached", "referenced"))

    def story(salt: str) -> None:
        is_first = engine.metric("pagoda_parked_sessions_total") == 0
        cold = engine.complete(salt + PROMPT, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert cold.sources["compute"] == cold.usage["prompt_tokens"]
        pods.wait_idle("chat-0")
        if is_first:
            assert num_there() > 0
            write_idle_seconds(pods, 0.3)
        eventually(lambda: num_there() == 0, f"it never left: {engine.get('/metrics')[1]}")
        assert engine.metric("pagoda_parked_sessions_total") >= 1
        again = engine.complete(salt + PROMPT, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert again.text == cold.text
        demand(again.sources["ram"] > 0, again.sources)

    shown(story)
