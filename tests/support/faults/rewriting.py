"""Applies armed faults to what passes between a sidecar and memcached: one Rewriter per proxy, one Link per connection.

Records are remembered as they pass, so that a fault can answer with the valid record of another address.
"""

import collections
import threading
from collections.abc import Callable, Sequence

from tests.support.faults.meta_stream import END, Frame, FrameReader
from tests.support.faults.mutations import FAILED, OUT_OF_MEMORY, Fault, address_of, fits, is_record, is_valid, mutate

_NUM_REMEMBERED = 64


class Cut:
    """After these bytes the connection ends."""


class Hang:
    """After these bytes nothing more comes."""


After = type[Cut] | type[Hang] | None


class Rewriter:
    """What is armed, and the records seen so far. Armed from any thread; its links run in the proxy's."""

    def __init__(self, counts: "collections.Counter[str]") -> None:
        self._counts = counts
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        self._seen: collections.OrderedDict[bytes, bytes] = collections.OrderedDict()

    def link(self) -> "Link":
        """Return the state of a new connection."""
        return Link(self)

    def arm(self, faults: Sequence[Fault]) -> None:
        """Add to what is to be done."""
        with self._lock:
            self._armed.extend(faults)

    def disarm(self) -> None:
        """Forget what is to be done."""
        with self._lock:
            self._armed.clear()

    @property
    def num_armed(self) -> int:
        """Faults not done yet."""
        return len(self._armed)

    def take(self, where: str, value: bytes = b"") -> Fault | None:
        """Take the first armed fault for `where` that can be done to `value`."""
        if not self._armed:
            return None
        with self._lock:
            for index, fault in enumerate(self._armed):
                if fault.where == where and (where == "ack" or fits(fault, value)):
                    return self._armed.pop(index)
        return None

    def done(self, fault: Fault) -> None:
        """Count a fault that was really done."""
        self._counts[fault.name] += 1

    def remember(self, record: bytes) -> None:
        """Keep a record for later swaps, if it is a valid one."""
        if not is_record(record) or not is_valid(record):
            return
        address = address_of(record)
        self._seen[address] = record
        self._seen.move_to_end(address)
        if len(self._seen) > _NUM_REMEMBERED:
            self._seen.popitem(last=False)

    def other(self, record: bytes) -> bytes | None:
        """Return a record of another address, of the same length if there is one."""
        address = address_of(record)
        others = [seen for known, seen in self._seen.items() if known != address]
        return next((seen for seen in others if len(seen) == len(record)), others[0] if others else None)


class Link:
    """One connection: its unfinished frames, and which of its answers belong to what."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._questions, self._answers = FrameReader(), FrameReader()
        self._stores: set[bytes] = set()  # opaques of stores that are not acknowledged
        # What is said instead of each MN to come; None: the MN itself
        self._instead_of_mn: collections.deque[bytes | None] = collections.deque()

    def question(self, data: bytes) -> tuple[bytes, After]:
        """Return what memcached gets of `data`, and what happens then."""
        return self._each(self._questions.feed(data), self._question)

    def answer(self, data: bytes) -> tuple[bytes, After]:
        """Return what the sidecar gets of `data`, and what happens then."""
        return self._each(self._answers.feed(data), self._answer)

    def _each(self, frames: Sequence[Frame], rewrite: Callable[[Frame], tuple[bytes, After]]) -> tuple[bytes, After]:
        out: list[bytes] = []
        for frame in frames:
            data, after = rewrite(frame)
            out.append(data)
            if after is not None:
                return b"".join(out), after
        return b"".join(out), None

    def _question(self, frame: Frame) -> tuple[bytes, After]:
        if frame.code == b"mn":
            self._instead_of_mn.append(None)
        if frame.code != b"ms":
            return frame.encode(), None
        value = frame.value
        assert value is not None
        fault = self._rewriter.take("store", value)
        if fault is not None and fault.kind in ("refuse", "fail"):
            self._rewriter.done(fault)
            self._instead_of_mn.append(OUT_OF_MEMORY if fault.kind == "refuse" else FAILED)
            return b"mn" + END, None
        if frame.opaque is not None:
            self._stores.add(frame.opaque)
        out, after = (frame.encode(), None) if fault is None else self._damage(fault, frame)
        self._rewriter.remember(value)
        return out, after

    def _answer(self, frame: Frame) -> tuple[bytes, After]:
        if frame.code == b"MN":
            instead = self._instead_of_mn.popleft() if self._instead_of_mn else None
            return (frame.encode() if instead is None else instead + END), None
        if frame.opaque in self._stores:
            self._stores.discard(frame.opaque or b"")
            return self._acknowledge(frame)
        if frame.value is None:
            return frame.encode(), None
        fault = self._rewriter.take("fetch", frame.value)
        out, after = (frame.encode(), None) if fault is None else self._damage(fault, frame)
        self._rewriter.remember(frame.value)
        return out, after

    def _acknowledge(self, frame: Frame) -> tuple[bytes, After]:
        fault = self._rewriter.take("ack")
        if fault is None:
            return frame.encode(), None
        self._rewriter.done(fault)
        if fault.kind == "refuse":
            return OUT_OF_MEMORY + END, None
        return b"", Cut if fault.kind == "cut" else None

    def _damage(self, fault: Fault, frame: Frame) -> tuple[bytes, After]:
        """Return a damaged frame with a value."""
        assert frame.value is not None
        whole = frame.encode()
        if fault.kind in ("cut", "hang"):
            self._rewriter.done(fault)
            return whole[: len(whole) // 2], Cut if fault.kind == "cut" else Hang
        if fault.kind in ("garble", "repeat", "opaque", "miss", "swallow"):
            self._rewriter.done(fault)
            return _misanswer(fault, frame, whole), None
        value = mutate(fault, frame.value, self._rewriter.other(frame.value))
        if value is None:
            return whole, None
        self._rewriter.done(fault)
        return frame.with_value(value).encode(), None


def _misanswer(fault: Fault, frame: Frame, whole: bytes) -> bytes:
    if fault.kind == "garble":
        return b"WAT " + whole
    if fault.kind == "repeat":
        return whole * 2
    if fault.kind == "miss":
        return b""
    if fault.kind == "swallow":
        middle = len(whole) // 2
        return whole[:middle] + whole[middle + 1 + fault.bit % 64 :]
    assert frame.opaque is not None, "answers to our questions carry their opaque"
    other = b"O%d" % (int(frame.opaque) + 1_000_000)
    return Frame(frame.line.replace(b"O" + frame.opaque, other), frame.value).encode()
