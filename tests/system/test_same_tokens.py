"""In exact mode the tokens are the same cold and from every tier, through every restart (CASES E3, E4, E7, E16, E27).

Two pods of real processes with a shared pool. What a request computed anew and what it reused is read from usage, so a
test that silently stopped reusing would fail too.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.pods import Answer, Pods
from tests.system.conftest import StartPods

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


def ask(pods: Pods, pod: str, prompt: str, **options: object) -> Answer:
    answer = pods.engine(pod).complete(prompt, max_tokens=NEW_TOKENS, ignore_eos=True, **options)
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"], "sources sum to the prompt's tokens"
    assert answer.usage["completion_tokens"] == NEW_TOKENS
    return answer


def push_out_of_device(pods: Pods, pod: str, salt: str) -> None:
    """Ask for other prompts until nothing older than them can be on the device."""
    for number in range(4):
        pods.engine(pod).complete(f"{number} {salt} " + "other words entirely " * 40, max_tokens=1, ignore_eos=True)
    pods.wait_idle(pod)


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def reused(answer: Answer) -> int:
    """Tokens that a repeat of this prompt can reuse: whole blocks, and the last token is always computed."""
    return int((answer.usage["prompt_tokens"] - 1) // BLOCK * BLOCK)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 11}], ids=["greedy", "sampled"])
def test_tokens_are_the_same_cold_and_from_device_ram_and_pool(pods: Pods, options: dict[str, object]) -> None:
    prompt = f"{options} {PROMPT}"
    cold = ask(pods, "chat-0", prompt, **options)
    assert cold.sources["compute"] == cold.usage["prompt_tokens"]
    device = ask(pods, "chat-0", prompt, **options)
    assert device.sources["device"] == reused(cold)
    pods.wait_idle("chat-0")
    push_out_of_device(pods, "chat-0", str(options))
    ram = ask(pods, "chat-0", prompt, **options)
    assert ram.sources["ram"] == reused(cold)
    eventually(lambda: pods.memcached_items() * BLOCK >= reused(cold))
    pool = ask(pods, "chat-1", prompt, **options)
    assert pool.sources["pool"] == reused(cold)
    assert {device.text, ram.text, pool.text} == {cold.text}


def test_tokens_are_the_same_after_an_engine_is_killed_and_its_ram_tier_kept(pods: Pods) -> None:
    cold = ask(pods, "chat-0", "restart " + PROMPT)
    pods.wait_idle("chat-0")
    pods.engine("chat-0").kill()
    pods.engine("chat-0").start()
    pods.engine("chat-0").wait_ready()
    again = ask(pods, "chat-0", "restart " + PROMPT)
    assert again.sources["ram"] == reused(cold)
    assert again.text == cold.text


def test_a_request_survives_its_sidecar_being_killed_in_the_middle(pods: Pods) -> None:
    cold = ask(pods, "chat-0", "sidecar " + PROMPT)
    push_out_of_device(pods, "chat-0", "sidecar")
    answers: list[Answer] = []
    long = threading.Thread(target=lambda: answers.append(ask(pods, "chat-0", "sidecar " + PROMPT)))
    long.start()
    pods.sidecar("chat-0").kill()
    long.join(60)
    assert not long.is_alive()
    assert [answer.text for answer in answers] == [cold.text]
    # Without a sidecar requests are served, and once it is back the RAM tier that outlived it is used again.
    alone = ask(pods, "chat-0", "nobody there " + PROMPT)
    assert alone.sources["compute"] == alone.usage["prompt_tokens"]
    pods.sidecar("chat-0").start()
    pods.sidecar("chat-0").wait_ready("/health")
    eventually(lambda: pods.engine("chat-0").metric("pagoda_tier_attached") == 1)
    push_out_of_device(pods, "chat-0", "back")
    back = ask(pods, "chat-0", "sidecar " + PROMPT)
    assert back.sources["ram"] == reused(cold)
    assert back.text == cold.text


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
    eventually(lambda: pods.engine("chat-1").metric("pagoda_tier_attached") == 1)
    push_out_of_device(pods, "chat-1", "hung again")
    back = ask(pods, "chat-1", "hung " + PROMPT)
    assert back.sources["ram"] + back.sources["device"] == reused(cold)
    assert back.text == cold.text


def test_at_idle_nothing_is_held(pods: Pods) -> None:
    for pod in ("chat-0", "chat-1"):
        pods.wait_idle(pod)
        engine = pods.engine(pod)
        assert engine.metric("pagoda_blocks", state="referenced") == 0
        free, cached = engine.metric("pagoda_blocks", state="free"), engine.metric("pagoda_blocks", state="cached")
        assert free + cached == 128
        assert pods.sidecar(pod).metric("pagoda_leases") == 0
        assert pods.sidecar(pod).metric("pagoda_quarantined_slots") == 0
