"""The policies against simulated pods, in virtual time."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_router.pods import Pod
from pagoda_router.policies import (
    BALANCE,
    BALANCE_FACTOR,
    CacheAware,
    Decision,
    LeastLoaded,
    PodView,
    Policy,
    RequestFacts,
    RoundRobin,
)
from pagoda_router.work import NO_MATCH, LoadShares, Match, load_shares, predicted_seconds

BLOCK = 16
SPEED = 400.0


def pod(index: int) -> Pod:
    return Pod(f"chat-{index:03}", f"10.0.0.{index}:80", f"10.0.0.{index}:81")


def view(index: int, load: float = 0.0, match: Match = NO_MATCH, **changes: object) -> PodView:
    values: dict[str, object] = {
        "pod": pod(index), "outstanding_seconds": load, "free_work_seconds": 0.5, "prefill_tokens_per_second": SPEED,
        "match": match,
    }  # fmt: skip
    return PodView(**{**values, **changes})  # type: ignore[arg-type]


def device(tokens: int) -> Match:
    return Match(tokens, tokens, tokens * 4)


def ram(tokens: int) -> Match:
    return Match(tokens, 0, tokens * 4)


def disk(tokens: int) -> Match:
    return Match(tokens, 0, tokens * 4, tokens)


def cache_aware(seed: int = 0) -> CacheAware:
    return CacheAware(random.Random(seed), BLOCK)


REQUEST = RequestFacts(num_prompt_tokens=1000, num_decode_tokens=64)


@dataclass
class Pods:
    """Pods whose outstanding work is the sum of what was decided and not yet ended."""

    policy: Policy
    num_pods: int
    free_seconds: float = 0.5
    reported: dict[int, float] = field(default_factory=dict)
    matches: dict[int, Match] = field(default_factory=dict)
    running: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._index = {pod(index): index for index in range(self.num_pods)}
        self.load = [0.0] * self.num_pods
        self._views = [self._view(index) for index in range(self.num_pods)]

    def send(self, request: RequestFacts = REQUEST) -> Decision:
        decision = self.policy.choose(request, self._views)
        self.running.append(decision)
        self._add(decision, decision.work_seconds)
        return decision

    def end(self, decision: Decision) -> None:
        self.running.remove(decision)
        self._add(decision, -decision.work_seconds)

    def _add(self, decision: Decision, seconds: float) -> None:
        index = self._index[decision.pod]
        self.load[index] += seconds
        self._views[index] = self._view(index)

    def _view(self, index: int) -> PodView:
        load = self.load[index] + self.reported.get(index, 0.0)
        return view(index, load, self.matches.get(index, NO_MATCH), free_work_seconds=self.free_seconds)

    def max_over_mean(self) -> float:
        return max(self.load) * self.num_pods / sum(self.load)


@pytest.mark.parametrize("policy", [cache_aware(), LeastLoaded(random.Random(0)), RoundRobin()])
@pytest.mark.parametrize("is_late", [False, True])
def test_k2_a_burst_over_idle_pods_spreads_although_reports_are_late(policy: Policy, is_late: bool) -> None:
    # 200 requests within 50 ms; a report of five seconds ago still says that three pods have work.
    pods = Pods(policy, 8, reported={0: 0.4, 1: 0.4, 2: 0.4} if is_late else {})
    counts = Counter(pods.send().pod for _ in range(200))
    assert max(counts.values()) / (200 / 8) <= 1.5
    assert len(counts) == 8


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("policy", [cache_aware(), LeastLoaded(random.Random(0)), RoundRobin()])
def test_k2_few_requests_at_a_time_use_all_pods(policy: Policy, concurrency: int) -> None:
    pods = Pods(policy, 8)
    counts: Counter[Pod] = Counter()
    for _ in range(200):
        if len(pods.running) == concurrency:
            pods.end(pods.running[0])
        counts[pods.send().pod] += 1
    assert len(counts) == 8


def test_ties_are_not_broken_by_how_a_pod_s_speed_was_measured() -> None:
    counts: Counter[Pod] = Counter()
    policy = cache_aware()
    for _ in range(200):
        views = [view(i, match=device(800), prefill_tokens_per_second=SPEED + i) for i in range(4)]
        decision = policy.choose(REQUEST, views)
        assert decision.reason == "least_loaded"
        counts[decision.pod] += 1
    assert min(counts.values()) > 25


@pytest.mark.parametrize("num_pods", [2, 8, 200])
@pytest.mark.parametrize("holders", ["all", "one"])
def test_k3_one_common_prefix_does_not_pin_the_traffic(num_pods: int, holders: str) -> None:
    # Every request has 800 tokens in common. Held by all it is worth nothing; held by one (hints never catch up, the
    # worst case) the balance bound holds.
    chance = random.Random(7)
    matches = {index: device(800) for index in range(num_pods if holders == "all" else 1)}
    pods = Pods(cache_aware(), num_pods, matches=matches)
    in_flight = 16 * num_pods
    for number in range(in_flight + min(8 * in_flight, 1000)):
        if len(pods.running) > in_flight:
            pods.end(chance.choice(pods.running) if holders == "all" else pods.running[0])
        pods.send()
        if number > in_flight:
            assert pods.max_over_mean() <= 1.25 + 1e-9


def test_the_pod_with_the_prefix_is_chosen_while_it_has_room() -> None:
    decision = cache_aware().choose(REQUEST, [view(0), view(1, 0.1, device(800), free_work_seconds=2.0), view(2)])
    assert (decision.pod, decision.reason, decision.tokens) == (pod(1), "prefix", 800)
    assert decision.work_seconds == pytest.approx((200 + 2 * 64) / SPEED)


def test_a_busy_pod_s_prefix_is_left_for_an_idle_one_and_the_reason_says_so() -> None:
    decision = cache_aware().choose(REQUEST, [view(0), view(1, 60.0, device(800)), view(2, 0.2)])
    assert (decision.pod, decision.reason) == (pod(0), BALANCE)


def test_the_device_is_worth_more_than_ram_and_ram_more_than_nothing() -> None:
    assert cache_aware().choose(REQUEST, [view(0, match=ram(800)), view(1, match=device(800))]).pod == pod(1)
    assert cache_aware().choose(REQUEST, [view(0, match=ram(800)), view(1)]).pod == pod(0)
    assert cache_aware().choose(REQUEST, [view(0, match=ram(800)), view(1, match=device(480))]).pod == pod(0)


def test_less_than_a_block_more_is_worth_nothing() -> None:
    decisions = [cache_aware(seed).choose(REQUEST, [view(0, match=device(804)), view(1, match=device(800))])
                 for seed in range(20)]  # fmt: skip
    assert {decision.reason for decision in decisions} == {"least_loaded"}
    assert len({decision.pod for decision in decisions}) == 2


def test_a_pod_is_priced_by_its_own_load_times() -> None:
    quick, slow = load_shares(1e-5, 1e-4, SPEED), load_shares(1e-3, 1e-2, SPEED)
    assert (quick.ram, quick.disk, slow.ram, slow.disk) == (0.004, 0.04, 0.4, 1.0)
    pods = [view(0, match=disk(800), shares=slow), view(1, match=ram(400), shares=slow)]
    assert cache_aware().choose(REQUEST, pods).pod == pod(1), "a disk slower than computing is worth nothing"
    pods = [view(0, match=disk(800), shares=quick), view(1, match=ram(400), shares=quick)]
    assert cache_aware().choose(REQUEST, pods).pod == pod(0)
    assert cache_aware().choose(REQUEST, [view(0, match=disk(800)), view(1, match=ram(800))]).pod == pod(1)


def test_equal_matches_tie_however_the_prices_differ() -> None:
    shares = [load_shares(ram_seconds, 3 * ram_seconds, SPEED) for ram_seconds in (1e-6, 1e-4, 1e-3)]
    for match in (ram(800), disk(800), Match(800, 100, 3200, 300)):
        pods = [view(index, match=match, shares=one) for index, one in enumerate(shares)]
        chosen = {cache_aware(seed).choose(REQUEST, pods).pod for seed in range(40)}
        assert len(chosen) == 3


def test_a_disk_never_seems_quicker_than_ram() -> None:
    assert load_shares(1e-3, 1e-5, SPEED) == load_shares(1e-3, 1e-3, SPEED)
    assert load_shares(0.0, 0.0, SPEED) == LoadShares()


@pytest.mark.parametrize(
    ("pods", "request_reason", "reason"),
    [
        ([None, None], None, "least_loaded"),
        ([None, None], "unknown_key", "unknown_key"),
        ([None, "no_hints"], None, "partial_hints"),
        (["digest_version", "digest_version"], None, "digest_version"),
        (["digest_version", "other_model"], None, "no_hints"),
        (["no_hints"], None, "only_pod"),
    ],
)
def test_k13_every_decision_by_load_alone_says_why(
    pods: list[str | None], request_reason: str | None, reason: str
) -> None:
    request = RequestFacts(1000, 64, degraded=request_reason)
    views = [view(index, degraded=degraded) for index, degraded in enumerate(pods)]
    assert cache_aware().choose(request, views).reason == reason


def test_round_robin_goes_on_when_pods_come_and_go() -> None:
    policy = RoundRobin()
    names = [policy.choose(REQUEST, [view(i) for i in which]).pod for which in ([0, 1, 2], [1, 2], [0, 2], [0, 1])]
    assert names == [pod(0), pod(1), pod(2), pod(0)]


matches = st.builds(
    lambda tokens, share: Match(tokens, int(tokens * share), tokens * 4), st.integers(0, 1000), st.floats(0, 1)
)
views = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 10), st.floats(1, 1e5), matches), min_size=1, max_size=12
).map(
    lambda rows: [
        view(index, load, match, free_work_seconds=free, prefill_tokens_per_second=speed)
        for index, (load, free, speed, match) in enumerate(rows)
    ]
)


@given(views, st.integers(0, 2**32))
def test_a_chosen_pod_is_within_the_bound_or_the_least_loaded(pods: list[PodView], seed: int) -> None:
    request = RequestFacts(1000, 64)
    decision = cache_aware(seed).choose(request, pods)
    chosen = next(view for view in pods if view.pod == decision.pod)
    work = predicted_seconds(1000, 64, chosen.match, chosen.prefill_tokens_per_second, chosen.shares)
    total = sum(view.outstanding_seconds for view in pods) + work
    within = chosen.outstanding_seconds + work <= max(chosen.free_work_seconds, BALANCE_FACTOR * total / len(pods)) * (
        1 + 1e-9
    )
    assert within or chosen.outstanding_seconds <= min(view.outstanding_seconds for view in pods) + 1e-5
    assert decision.work_seconds == work
    assert decision.tokens == chosen.match.tokens


@given(views, st.integers(0, 2**32))
def test_more_of_the_prefix_never_loses_a_pod_the_request(pods: list[PodView], seed: int) -> None:
    decision = cache_aware(seed).choose(REQUEST, pods)
    if len(pods) == 1 or decision.reason != "prefix":
        return
    index = next(index for index, view in enumerate(pods) if view.pod == decision.pod)
    richer = list(pods)
    richer[index] = view(
        index,
        pods[index].outstanding_seconds,
        device(1000),
        free_work_seconds=pods[index].free_work_seconds,
        prefill_tokens_per_second=pods[index].prefill_tokens_per_second,
    )
    # All the load is equal and the pod has strictly more to offer; only exact ties may go elsewhere.
    again = cache_aware(seed).choose(REQUEST, richer)
    assert again.pod == decision.pod or again.reason == "prefix"
