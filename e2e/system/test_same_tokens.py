"""In exact mode the tokens are the same cold and from every tier, through every restart (CASES E3, E4, E7, E16, E27).

Two pods of real processes with a shared pool. What a request computed anew and what it reused is read from usage, so a
test that silently stopped reusing would fail too. The tiny model computes about as fast as tiers load, so that a prompt
is often part loaded and part computed beside it: the tokens must be the same all the more.
"""

import os
import signal
import threading

import pytest

from e2e.system.conftest import StartPods
from e2e.system.stories import demand, eventually, shown
from tests.support.pods import Pods
from tests.support.program import Answer

PROMPT = (
    "The old lighthouse keeper wrote down each passing ship, its name, its colours and the hour at which it came. "
    "Nobody had ever asked for the list, yet he kept it for forty years, and when the harbour was closed the list was "
    "all that was left of it. 12345 67890; def f(x): return x * 2 — 你好，世界。 🎏 The end of the page says: "
)
NEW_TOKENS = 48
BLOCK = 16


@pytest.fixture(scope="module")
def pods(start_pods: StartPods) -> Pods:
    return start_pods(replicas=2)


def ask(pods: Pods, pod: str, prompt: str, new_tokens: int = NEW_TOKENS, **options: object) -> Answer:
    answer = pods.engine(pod).complete(prompt, max_tokens=new_tokens, ignore_eos=True, **options)
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"], "sources sum to the prompt's tokens"
    assert answer.usage["completion_tokens"] == new_tokens
    return answer


def push_out_of_device(pods: Pods, pod: str, salt: str) -> None:
    """Ask for other prompts until nothing older than them can be on the device."""
    for number in range(4):
        pods.engine(pod).complete(f"{number} {salt} " + "other words entirely " * 40, max_tokens=1, ignore_eos=True)
    pods.wait_idle(pod)


def wait_attached(pods: Pods, pod: str) -> None:
    eventually(lambda: pods.engine(pod).metric("pagoda_tier_attached") == 1, "the engine never attached again")


def reused(answer: Answer) -> int:
    """Tokens that a repeat of this prompt can reuse: whole blocks, and the last token is always computed."""
    return int((answer.usage["prompt_tokens"] - 1) // BLOCK * BLOCK)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 11}], ids=["greedy", "sampled"])
def test_e7_tokens_are_the_same_cold_and_from_device_ram_and_pool(pods: Pods, options: dict[str, object]) -> None:
    def story(salt: str) -> None:
        prompt = f"{salt}{options} {PROMPT}"
        cold = ask(pods, "chat-0", prompt, **options)
        assert cold.sources["compute"] == cold.usage["prompt_tokens"]
        device = ask(pods, "chat-0", prompt, **options)
        assert device.text == cold.text
        assert device.sources["device"] == reused(cold)
        pods.wait_idle("chat-0")
        push_out_of_device(pods, "chat-0", f"{salt}{options}")
        ram = ask(pods, "chat-0", prompt, **options)
        assert ram.text == cold.text
        demand(ram.sources["ram"] > 0, ram.sources)
        eventually(lambda: pods.memcached_items() * BLOCK >= reused(cold), "the pool was never filled")
        pool = ask(pods, "chat-1", prompt, **options)
        assert pool.text == cold.text
        demand(pool.sources["pool"] > 0, pool.sources)

    shown(story)


def test_e7_tokens_are_the_same_after_an_engine_is_killed_and_its_ram_tier_kept(pods: Pods) -> None:
    def story(salt: str) -> None:
        cold = ask(pods, "chat-0", f"{salt}restart {PROMPT}")
        pods.wait_idle("chat-0")
        pods.engine("chat-0").kill()
        pods.engine("chat-0").start()
        pods.engine("chat-0").wait_ready()
        wait_attached(pods, "chat-0")
        again = ask(pods, "chat-0", f"{salt}restart {PROMPT}")
        assert again.text == cold.text
        demand(again.sources["ram"] > 0, again.sources)

    shown(story)


@pytest.mark.parametrize("moment", ["while it comes in", "while it is answered"])
def test_e4_a_request_survives_its_sidecar_being_killed_in_the_middle(pods: Pods, moment: str) -> None:
    prompt, new_tokens = f"sidecar {moment} {PROMPT}", 256
    cold = ask(pods, "chat-0", prompt, new_tokens)
    push_out_of_device(pods, "chat-0", moment)
    answers: list[Answer] = []
    long = threading.Thread(target=lambda: answers.append(ask(pods, "chat-0", prompt, new_tokens)))
    generated = pods.engine("chat-0").metric("pagoda_generation_tokens_total")
    long.start()
    if moment == "while it is answered":
        eventually(
            lambda: pods.engine("chat-0").metric("pagoda_generation_tokens_total") > generated, "no token was generated"
        )
    pods.sidecar("chat-0").kill()
    assert long.is_alive(), "the request ended before its sidecar did"
    long.join(60)
    assert not long.is_alive()
    assert [answer.text for answer in answers] == [cold.text]
    # Without a sidecar requests are served, and once it is back the RAM tier that outlived it is used again.
    alone = ask(pods, "chat-0", f"nobody there {moment} {PROMPT}")
    assert alone.sources["compute"] == alone.usage["prompt_tokens"]
    pods.sidecar("chat-0").start()
    pods.sidecar("chat-0").wait_ready()
    wait_attached(pods, "chat-0")

    def story(salt: str) -> None:
        push_out_of_device(pods, "chat-0", f"{salt}{moment} back")
        back = ask(pods, "chat-0", prompt, new_tokens)
        assert back.text == cold.text
        demand(back.sources["ram"] > 0, back.sources)

    shown(story)


def test_a_hung_sidecar_costs_a_deadline_and_no_request(pods: Pods) -> None:
    cold = ask(pods, "chat-1", "hung " + PROMPT)
    pods.wait_idle("chat-1")
    push_out_of_device(pods, "chat-1", "hung")
    family = pods.sidecar("chat-1").family()
    try:
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        for _ in range(3):
            assert ask(pods, "chat-1", "hung " + PROMPT).text == cold.text
    finally:
        for pid in family:
            os.kill(pid, signal.SIGCONT)
    wait_attached(pods, "chat-1")

    def story(salt: str) -> None:
        push_out_of_device(pods, "chat-1", f"{salt}hung again")
        back = ask(pods, "chat-1", "hung " + PROMPT)
        assert back.text == cold.text
        demand(back.sources["ram"] > 0, back.sources)

    shown(story)


def test_at_idle_nothing_is_held(pods: Pods) -> None:
    for pod in ("chat-0", "chat-1"):
        pods.wait_idle(pod)
        engine = pods.engine(pod)
        assert engine.metric("pagoda_blocks", state="referenced") == 0
        free, cached = engine.metric("pagoda_blocks", state="free"), engine.metric("pagoda_blocks", state="cached")
        assert free + cached == 128
        assert pods.sidecar(pod).metric("pagoda_leases") == 0
        assert pods.sidecar(pod).metric("pagoda_quarantined_slots") == 0
