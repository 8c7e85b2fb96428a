"""memcached stopped, killed or black-holed under load: no failed request, right tokens, hits resume by themselves."""

import concurrent.futures
import contextlib
import signal
import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.pods import Pods
from tests.support.program import Answer, Program
from tests.system.conftest import StartPods

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
    ask(pods, "chat-0", prompt)
    blocks = (answer.usage["prompt_tokens"] - 1) // 16
    end = time.monotonic() + 30
    while pods.memcached_items() < before + blocks - 4:  # a shared beginning may be there already
        assert time.monotonic() < end, "the pool was never filled"
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
    cold = put_into_pool(pods, f"{name} before {WORDS}")
    before = ask(pods, "chat-1", f"{name} before {WORDS}")
    assert before.sources["pool"] > 0
    assert before.text == cold.text
    wanted = put_into_pool(pods, f"{name} during {WORDS}")
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        # Load that goes on over the moment of the fault, on both pods, each prompt new to its pod.
        load = [
            executor.submit(ask, pods, f"chat-{number % 2}", f"{name} load {number} {WORDS}") for number in range(8)
        ]
        with fault(pods.memcached()):
            during = [executor.submit(ask, pods, "chat-1", f"{name} during {WORDS}") for _ in range(4)]
            assert {future.result(120).text for future in during} == {wanted.text}
            for future in load:
                future.result(120)
    # Nobody is restarted but the node itself; within the breaker's probing time its items count again.
    end = time.monotonic() + 60
    attempt = 0
    while True:
        attempt += 1
        prompt = f"{name} after {attempt} {WORDS}"
        put_into_pool_quietly(pods, prompt)
        if ask(pods, "chat-1", prompt).sources["pool"] > 0:
            break
        assert time.monotonic() < end, "hits never resumed"


def put_into_pool_quietly(pods: Pods, prompt: str) -> None:
    ask(pods, "chat-0", prompt)
    ask(pods, "chat-0", prompt)
    time.sleep(0.5)


def num_unanswered(pods: Pods) -> float:
    """Records that chat-1's sidecar asked for and that the node did not answer for."""
    outcomes = ("refused", "lost", "timeout", "breaker")
    name = "pagoda_pool_operations_total"
    return sum(pods.sidecar("chat-1").metric(name, operation="probe", outcome=outcome) for outcome in outcomes)


def eventually(condition: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)


def wait_until_node_is_up(pods: Pods) -> None:
    eventually(lambda: pods.sidecar("chat-1").metric("pagoda_pool_node_up") == 1, "the node was never used again")


def test_a_black_hole_costs_one_deadline_once_and_its_misses_are_counted(pods: Pods) -> None:
    def median_ttft(salt: str) -> float:
        answers = [ask(pods, "chat-1", f"{salt} {number} {WORDS}") for number in range(5)]
        assert all(answer.sources["pool"] == 0 for answer in answers)
        return statistics.median(answer.ttft_seconds for answer in answers)

    without_hit = median_ttft("nobody stored this")
    wait_until_node_is_up(pods)
    before = num_unanswered(pods)
    with stopped(pods.memcached()):
        ask(pods, "chat-1", f"meets the black hole {WORDS}")
        eventually(lambda: num_unanswered(pods) > before, "the dead node was never found to be dead")
        asked = num_unanswered(pods)
        assert median_ttft("nobody can look this up") < without_hit + DEADLINE_SECONDS / 2
        assert num_unanswered(pods) > asked
    wait_until_node_is_up(pods)
