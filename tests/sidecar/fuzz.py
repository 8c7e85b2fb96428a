"""A peer that says anything: random and nearly right messages to a real service over its real socket.

`Story` holds what was granted in one example, so that a call can be a replay, a double settlement or a commit of
something never reserved; `messages` draws them. What must hold after each call is in `test_fuzz`.
"""

import dataclasses
from dataclasses import field
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from pagoda_protocol.addresses import SELF_TEST_ADDRESS
from pagoda_protocol.digests import DIGEST_VERSION
from pagoda_protocol.tier import PROTOCOL_VERSION
from pagoda_protocol.tier import tier_pb2 as pb
from tests.sidecar.support import BLOCK_TOKENS, NAMESPACE, ROOT, chain

PAYLOAD_BYTES = 5000
CALLS = ("Lookup", "Load", "Reserve", "Commit", "Abort", "Settle", "Report", "HandOver")
_KINDS = {name: getattr(pb, f"{name}Request") for name in CALLS}

# Few chains and few ids, so that calls meet one another.
CHAINS = [chain(6, seed) for seed in range(3)]
_ADDRESSES = [ROOT, *(address for addresses in CHAINS for address in addresses)]
_HUGE = st.sampled_from([2**31 - 1, 2**32 - 1])
_U32 = st.integers(0, 7) | _HUGE
_U64 = st.integers(0, 7) | _HUGE | st.just(2**64 - 1)
_FLOATS = st.floats(0, 2) | st.sampled_from([float("nan"), float("inf"), -1.0, 1e308])
_WRONG = st.binary(max_size=40)


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], one_in: int = 12) -> st.SearchStrategy[Any]:
    """Draw from `odd` now and then."""
    return st.integers(1, one_in).flatmap(lambda number: odd if number == 1 else usual)


addresses = mostly(st.sampled_from(_ADDRESSES), _WRONG, 60)
chains = mostly(
    st.tuples(st.sampled_from(CHAINS), st.integers(0, 6)).map(lambda pair: pair[0][: pair[1]]),
    st.lists(addresses, max_size=6),
)


@dataclasses.dataclass
class Story:
    """What was said so far in one example."""

    number: int = 0  # a lease that was settled in the story before grants nothing more: ids are each story's own
    attachment: bytes = b""
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    slots: list[tuple[str, int, int]] = field(default_factory=list)  # (lease, slot, generation) as granted


def ids(story: Story) -> st.SearchStrategy[Any]:
    """Draw a request's or lease's id."""
    usual = st.sampled_from(["a", "b", "c", "d"]).map(lambda letter: f"{letter}{story.number}")
    return mostly(usual, st.text(max_size=5) | st.just("x" * 200))


def attach_request(process: bytes = b"p" * 16) -> pb.AttachRequest:
    """The one that is right."""
    return pb.AttachRequest(
        protocol_version=PROTOCOL_VERSION, process_id=process, namespace=NAMESPACE, payload_bytes=PAYLOAD_BYTES,
        block_tokens=BLOCK_TOKENS, digest_version=DIGEST_VERSION, model_names=["m"], template_digest=b"t" * 16,
        address_self_test=SELF_TEST_ADDRESS,
    )  # fmt: skip


@st.composite
def wrong_attaches(draw: DrawFn) -> bytes:
    """One with something wrong, or a second one while the first lives."""
    request = attach_request(draw(st.sampled_from([b"q" * 16, b""])))
    name = draw(st.sampled_from(["protocol_version", "digest_version", "payload_bytes", "block_tokens", "codec"]))
    setattr(request, name, draw(st.sampled_from([0, 2**31, 2**32 - 1])))
    request.namespace = draw(mostly(st.just(NAMESPACE), _WRONG, 3))
    request.model_names.extend(draw(mostly(st.just([]), st.just(["", "x" * 300]) | st.just(["m"] * 100), 3)))
    return request.SerializeToString()


@st.composite
def messages(draw: DrawFn, story: Story) -> tuple[str, bytes]:
    """Draw a call and the bytes of its message."""
    kind = draw(st.integers(1, 20))
    if kind == 1:
        return draw(st.sampled_from(CALLS)), draw(st.binary(max_size=200))
    if kind <= 4 and story.sent:
        return draw(st.sampled_from(story.sent))  # a replay, byte by byte
    name = draw(st.sampled_from(CALLS))
    request = _KINDS[name]()
    request.attachment = draw(mostly(st.just(story.attachment), _WRONG | st.just(b"\0" * 16), 15))
    _FILLERS[name](draw, story, request)
    data: bytes = request.SerializeToString()
    return name, data


def _lookup(draw: DrawFn, story: Story, request: Any) -> None:
    request.addresses.extend(draw(chains))


def _load(draw: DrawFn, story: Story, request: Any) -> None:
    request.request_id = draw(ids(story))
    run = draw(chains)
    request.addresses.extend(run)
    request.root = draw(mostly(st.just(ROOT), addresses))
    request.first = draw(mostly(st.integers(0, len(run)), _U32))
    request.stop = draw(mostly(st.integers(0, len(run)), _U32))
    request.order = draw(st.integers(0, 2))


def _reserve(draw: DrawFn, story: Story, request: Any) -> None:
    request.request_id = draw(ids(story))
    run = draw(chains)
    parents = [ROOT, *run]
    is_odd = draw(st.integers(1, 4)) == 1
    for index, address in enumerate(run):
        block = request.blocks.add(address=address, parent=parents[index], index=index, tokens=BLOCK_TOKENS)
        if is_odd:
            block.parent = draw(mostly(st.just(parents[index]), addresses, 2))
            block.index = draw(mostly(st.just(index), _U32, 2))
            block.tokens, block.tenant_tag = draw(_U32), draw(_U64)


def _granted(story: Story) -> st.SearchStrategy[Any]:
    """One of the granted slots, by draws that are the same whatever was granted: a replay may be granted other ones."""
    slots = story.slots or [("a", 0, 0)]
    return st.integers(0, 31).map(lambda number: slots[number % len(slots)])


def _commit(draw: DrawFn, story: Story, request: Any) -> None:
    invented = st.tuples(ids(story), _U64, _U64)
    picked = draw(st.lists(mostly(_granted(story), invented), max_size=4))
    request.lease_id = draw(mostly(st.just(picked[0][0]), ids(story))) if picked else draw(ids(story))
    for _, slot, generation in picked:
        request.blocks.add(
            slot=slot, generation=generation, xxh3_128=draw(mostly(st.just(b"x" * 16), _WRONG)),
            payload_bytes=draw(mostly(st.just(PAYLOAD_BYTES), _U32)),
        )  # fmt: skip


def _abort(draw: DrawFn, story: Story, request: Any) -> None:
    request.lease_id = draw(ids(story))


def _settle(draw: DrawFn, story: Story, request: Any) -> None:
    request.lease_ids.extend(draw(st.lists(ids(story), max_size=4)))
    request.suspect_slots.extend(draw(mostly(st.just([]), st.lists(_U64, max_size=4), 4)))


def _report(draw: DrawFn, story: Story, request: Any) -> None:
    request.sequence = draw(_U64)
    for _ in range(draw(st.integers(0, 3))):
        digest = draw(mostly(st.binary(min_size=16, max_size=16), _WRONG))
        request.rows.add(digest=digest, tokens=draw(_U32), address=draw(addresses))
    for name in ("device_added", "device_removed", "touched", "parked"):
        getattr(request, name).extend(draw(st.lists(addresses, max_size=4)))
    if draw(st.booleans()):
        load = request.load
        load.num_running, load.num_waiting = draw(_U32), draw(_U32)
        load.outstanding_seconds, load.prefill_tokens_per_second = draw(_FLOATS), draw(_FLOATS)
        load.free_work_seconds, load.ram_seconds_per_token = draw(_FLOATS), draw(_FLOATS)


def _hand_over(draw: DrawFn, story: Story, request: Any) -> None:
    request.budget_bytes = draw(_U64)
    request.budget_seconds = draw(mostly(st.floats(0, 0.05), _FLOATS, 3))


_FILLERS = {
    "Lookup": _lookup, "Load": _load, "Reserve": _reserve, "Commit": _commit, "Abort": _abort, "Settle": _settle,
    "Report": _report, "HandOver": _hand_over,
}  # fmt: skip
