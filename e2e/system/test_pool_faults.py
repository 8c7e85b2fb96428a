"""memcached stopped, killed or black-holed under load: no failed request, right tokens, hits resume by themselves."""

import concurrent.futures
import contextlib
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from e2e.system.conftest import StartPods
from e2e.system.stories import demand, eventually, shown
from tests.support.pods import Pods
from tests.support.program import Answer, Program

WORDS = "one prefix that everybody shares and that the pool holds for all of them " * 12
NEW_TOKENS = 8
DEADLINE_SECONDS = 0.5  # of the pool client, for a node that owes an answer


@pytest.fixture(scope="module")
def pods(start_pods: StartPods) -> Pods:
    return start_pods(replicas=2)


def ask(pods: Pods, pod: str, prompt: str) -> Answer:
    answer = pods.engine(pod).complete(prompt, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert sum(answer.sources.values()) == answer.usage["prompt_tokens"]
    return answer


def put_into_pool(pods: Pods, prompt: str) -> Answer:
    """Make chat-0 compute and see `prompt` twice, and wait until the pool holds it."""
    before = pods.memcached_items()
    answer = ask(pods, "chat-0", prompt)
    assert ask(pods, "chat-0", prompt).text == answer.text
    wanted = before + (answer.usage["prompt_tokens"] - 1) // 16 - 4  # a shared beginning may be there already
    end = time.monotonic() + 10
    while (found := pods.memcached_items()) < wanted:
        demand(time.monotonic() < end, f"{found} records in the pool, not {wanted}")
        time.sleep(0.05)
    return answer


@contextlib.contextmanager
def stopped(node: Program) -> Iterator[None]:
    node.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.signal(signal.SIGCONT)


@contextlib.contextmanager
def killed(node: Program) -> Iterator[None]:
    node.kill()
    try:
        yield
    finally:
        node.start()


@contextlib.contextmanager
def ended(node: Program) -> Iterator[None]:
    node.stop()
    try:
        yield
    finally:
        node.start()


@pytest.mark.parametrize("fault", [ended, killed, stopped], ids=["stopped", "killed", "black-holed"])
def test_requests_are_served_through_a_dead_pool_and_hits_resume(
    pods: Pods, fault: Callable[[Program], contextlib.AbstractContextManager[None]]
) -> None:
    name = fault.__name__

    def hit(salt: str) -> None:
        prompt = f"{salt}{name} before {WORDS}"
        cold, answer = put_into_pool(pods, prompt), ask(pods, "chat-1", prompt)
        assert answer.text == cold.text
        demand(answer.sources["pool"] > 0, answer.sources)

    def fill(salt: str) -> tuple[str, Answer]:
        prompt = f"{salt}{name} during {WORDS}"
        return prompt, put_into_pool(pods, prompt)

    shown(hit)
    prompt, wanted = shown(fill)
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        # Load that goes on over the moment of the fault, on both pods, each prompt new to its pod.
        load = [
            executor.submit(ask, pods, f"chat-{number % 2}", f"{name} load {number} {WORDS}") for number in range(8)
        ]
        with fault(pods.memcached()):
            during = [executor.submit(ask, pods, "chat-1", prompt) for _ in range(4)]
            assert {future.result(120).text for future in during} == {wanted.text}
            for future in load:
                future.result(120)
    # Nobody is restarted but the node itself; within the breaker's probing time its items count again.
    attempts = count()
    eventually(lambda: resumes(pods, f"{name} after {next(attempts)} {WORDS}"), "hits never resumed", 60)


def resumes(pods: Pods, prompt: str) -> bool:
    """Whether chat-1 hits through the pool what chat-0 has just seen twice."""
    cold = ask(pods, "chat-0", prompt)
    assert ask(pods, "chat-0", prompt).text == cold.text
    time.sleep(0.5)
    hit = ask(pods, "chat-1", prompt)
    assert hit.text == cold.text
    return hit.sources["pool"] > 0


def num_unanswered(pods: Pods) -> float:
    """Records that chat-1's sidecar asked for and that the node did not answer for."""
    outcomes = ("refused", "lost", "timeout", "breaker")
    name = "pagoda_pool_operations_total"
    return sum(pods.sidecar("chat-1").metric(name, operation="probe", outcome=outcome) for outcome in outcomes)


def wait_until_node_is_up(pods: Pods) -> None:
    eventually(lambda: pods.sidecar("chat-1").metric("pagoda_pool_node_up") == 1, "the node was never used again", 60)


def test_a_black_hole_costs_one_deadline_once_and_its_misses_are_counted(pods: Pods) -> None:
    def median_ttft(salt: str) -> float:
        answers = [ask(pods, "chat-1", f"{salt} {number} {WORDS}") for number in range(5)]
        assert all(answer.sources["pool"] == 0 for answer in answers)
        return statistics.median(answer.ttft_seconds for answer in answers)

    def story(salt: str) -> None:
        without_hit = median_ttft(f"{salt}nobody stored this")
        wait_until_node_is_up(pods)
        before, end = num_unanswered(pods), time.monotonic() + 15
        with stopped(pods.memcached()):
            ask(pods, "chat-1", f"{salt}meets the black hole {WORDS}")
            while num_unanswered(pods) == before:
                demand(time.monotonic() < end, "the dead node was never found to be dead")
                time.sleep(0.05)
            asked, with_black_hole = num_unanswered(pods), median_ttft(f"{salt}nobody can look this up")
            num_missed = num_unanswered(pods) - asked
        wait_until_node_is_up(pods)
        demand(num_missed > 0, "no lookup of the pool")
        demand(with_black_hole < without_hit + DEADLINE_SECONDS / 2, (with_black_hole, without_hit))

    shown(story)
