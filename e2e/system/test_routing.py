"""Requests find the pod that holds their prefix, through the real router; a dead engine's credit is gone (CASES K1)."""

import time
from functools import partial

import pytest

from e2e.system.conftest import StartPods
from e2e.system.stories import demand, eventually, shown
from tests.support.pods import Pods
from tests.support.program import Answer, RequestFailed

SYSTEM = "You keep the log of a lighthouse. You answer shortly and never invent a ship. " * 8
BLOCK = 16


@pytest.fixture(scope="module")
def pods(start_pods: StartPods) -> Pods:
    return start_pods(replicas=2, with_router=True)


def turn(pods: Pods, messages: list[dict[str, str]], question: str) -> tuple[Answer, dict[str, str]]:
    """Ask a question, append question and answer to the conversation, return answer and parsed route header."""
    messages.append({"role": "user", "content": question})
    answer = pods.router.chat(messages, max_tokens=12, ignore_eos=True)
    messages.append({"role": "assistant", "content": answer.text})
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"]
    assert answer.usage["completion_tokens"] == 12
    header = next(value for name, value in answer.headers.items() if name.lower() == "x-pagoda-route")
    return answer, dict(part.split("=", 1) for part in header.split(";"))


def settle(pods: Pods) -> None:
    """Wait until digests of what was answered had time to reach the router (reported each 100 ms, then streamed)."""
    time.sleep(1.5)


def test_a_conversation_returns_to_the_pod_that_holds_it(pods: Pods) -> None:
    def story(name: str, salt: str) -> None:
        messages = [{"role": "system", "content": f"{salt}{name} {SYSTEM}"}]
        _, first = turn(pods, messages, "Which ship came last?")
        for question in ("And before it?", "And the first one?"):
            settle(pods)
            answer, route = turn(pods, messages, question)
            reused = answer.usage["prompt_tokens"] - answer.sources["compute"]
            demand((route["pod"], route["reason"]) == (first["pod"], "prefix"), route)
            demand(reused > answer.usage["prompt_tokens"] / 2, answer.sources)
            # What the router believes is a lower bound of what the pod holds.
            demand(int(route["tokens"]) <= reused, (route, answer.sources))

    for name in ("a", "b", "c"):
        shown(partial(story, name))


def test_the_digests_cover_most_of_what_a_pod_can_reuse(pods: Pods) -> None:
    def story(salt: str) -> None:
        messages = [{"role": "system", "content": f"{salt}coverage {SYSTEM}"}]
        turn(pods, messages, "Which ship came last?")
        settle(pods)
        answer, route = turn(pods, messages, "And before it?")
        reused = answer.usage["prompt_tokens"] - answer.sources["compute"]
        demand(int(route["tokens"]) >= reused - 4 * BLOCK, (route, answer.sources))

    shown(story)


def test_k1_a_killed_engine_has_no_device_credit_and_its_ram_credit_is_real(pods: Pods) -> None:
    def story(salt: str) -> None:
        messages = [{"role": "system", "content": f"{salt}k1 {SYSTEM}"}]
        _, route = turn(pods, messages, "Which ship came last?")
        pod = route["pod"]
        eventually(lambda: '"device"' in rows_of(pods, pod), "the device's rows were never published")
        pods.wait_idle(pod)
        pods.engine(pod).kill()
        eventually(lambda: '"device"' not in rows_of(pods, pod), "device rows outlived their engine", 10)
        # Nobody is refused meanwhile, and the other pod is the one that answers.
        other, route = turn(pods, list(messages), "And before it?")
        assert route["pod"] != pod
        assert other.text
        pods.engine(pod).start()
        pods.engine(pod).wait_ready()
        eventually(lambda: pods.engine(pod).metric("pagoda_tier_attached") == 1, "the engine never attached again")
        # What the sidecar republished as RAM is what a request finds there.
        demand('"ram"' in rows_of(pods, pod), "nothing was stored in RAM")
        direct = pods.engine(pod).chat([*messages, {"role": "user", "content": "And before it?"}], max_tokens=4)
        assert sum(direct.sources.values()) == direct.usage["prompt_tokens"]
        assert direct.sources["device"] == 0
        demand(direct.sources["ram"] > 0, direct.sources)

    shown(story)


def rows_of(pods: Pods, pod: str) -> str:
    _, text = pods.sidecar(pod).get("/v1/prefixes?follow=false")
    return "\n".join(line for line in text.splitlines() if '"rows"' in line)


def test_a_prompt_that_cannot_fit_is_refused_at_once_through_the_router(pods: Pods) -> None:
    with pytest.raises(RequestFailed) as failure:
        pods.router.complete("word " * 3000, max_tokens=4)
    assert failure.value.status == 400
    assert "context_length_exceeded" in str(failure.value)
