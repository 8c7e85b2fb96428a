"""The fault proxy does what it says, no more: a fault that does nothing would prove nothing."""

import socket
import time
from collections.abc import Iterator

import pytest
import xxhash

from pagoda_protocol.records import RecordHeader, pack_header
from tests.support.faults.meta_stream import Frame, FrameReader
from tests.support.faults.mutations import FIELDS, HEADER_FIELDS, Fault, flip, is_valid
from tests.support.faults.proxy import Proxy, running_proxy
from tests.support.memcached import Memcached, needs_memcached, running_memcached

pytestmark = needs_memcached


def record(letter: bytes, size: int = 5000) -> bytes:
    payload = letter * size
    header = RecordHeader(b"n" * 16, letter * 32, b"p" * 16, 1, 4, size, 7, xxhash.xxh3_128_digest(payload))
    return pack_header(header) + payload


@pytest.fixture(scope="module")
def node() -> Iterator[Memcached]:
    with running_memcached() as memcached:
        yield memcached


@pytest.fixture
def proxy(node: Memcached) -> Iterator[Proxy]:
    with running_proxy("127.0.0.1", node.port, speaks_meta=True) as running:
        yield running


class Peer:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=5.0)
        self._frames = FrameReader()

    def close(self) -> None:
        self._socket.close()

    def ask(self, question: bytes, seconds: float = 5.0) -> list[Frame]:
        """Return the answers up to MN, or what came before the connection ended or `seconds` passed."""
        self._socket.settimeout(seconds)
        answers: list[Frame] = []
        try:
            self._socket.sendall(question + b"mn\r\n")
            while not answers or answers[-1].code != b"MN":
                data = self._socket.recv(1 << 16)
                if not data:
                    break
                answers += self._frames.feed(data)
        except OSError:
            pass
        return answers

    def store(self, key: bytes, value: bytes, opaque: int = 1) -> list[Frame]:
        return self.ask(b"ms %b %d F0 O%d\r\n%b\r\n" % (key, len(value), opaque, value))

    def fetch(self, key: bytes, opaque: int = 2, seconds: float = 5.0) -> list[Frame]:
        return self.ask(b"mg %b v f c q O%d\r\n" % (key, opaque), seconds)


@pytest.fixture
def peer(proxy: Proxy) -> Iterator[Peer]:
    connected = Peer(proxy)
    assert connected.store(b"a", record(b"a"))[0].code == b"HD"
    assert connected.store(b"b", record(b"b"))[0].code == b"HD"
    assert connected.fetch(b"a")[0].value == record(b"a"), "without a fault nothing is changed"
    yield connected
    connected.close()


@pytest.mark.parametrize("field", FIELDS)
def test_exactly_one_bit_of_the_field_is_flipped(proxy: Proxy, peer: Peer, field: str) -> None:
    proxy.arm(Fault("fetch", "flip", field, 11))
    value = peer.fetch(b"a")[0].value
    assert value is not None
    changed = [index for index, (x, y) in enumerate(zip(value, record(b"a"), strict=True)) if x != y]
    offset, size = HEADER_FIELDS.get(field, (128, 5000))
    assert len(changed) == 1
    assert offset <= changed[0] < offset + size
    assert (value[changed[0]] ^ record(b"a")[changed[0]]).bit_count() == 1
    assert proxy.counts[f"fetch.flip.{field}"] == 1
    assert peer.fetch(b"a")[0].value == record(b"a"), "once"


def test_a_resigned_header_has_a_checksum_that_fits() -> None:
    whole = record(b"a")
    assert is_valid(whole)
    assert not is_valid(flip(whole, "tokens", 3))
    assert is_valid(flip(whole, "tokens", 3, resigned=True)), "nothing but the checksum could have told"
    assert not is_valid(flip(whole, "xxh3", 0, resigned=True))
    assert not is_valid(flip(whole, "payload", 0, resigned=True))


def test_a_swapped_answer_is_the_valid_record_of_another_address(proxy: Proxy, peer: Peer) -> None:
    proxy.arm(Fault("fetch", "swap"))
    assert peer.fetch(b"a")[0].value == record(b"b")


@pytest.mark.parametrize(("kind", "codes"), [("miss", [b"MN"]), ("repeat", [b"VA", b"VA", b"MN"])])
def test_answers_are_lost_or_repeated(proxy: Proxy, peer: Peer, kind: str, codes: list[bytes]) -> None:
    proxy.arm(Fault("fetch", kind))
    assert [answer.code for answer in peer.fetch(b"a")] == codes


@pytest.mark.parametrize(("kind", "longer"), [("truncate", -1), ("extend", +1)])
def test_a_value_of_another_length_says_so_in_its_line(proxy: Proxy, peer: Peer, kind: str, longer: int) -> None:
    proxy.arm(Fault("fetch", kind, bit=3))
    value = peer.fetch(b"a")[0].value
    assert value is not None
    assert (len(value) - len(record(b"a"))) * longer > 0


def test_an_answer_to_another_question_has_another_opaque(proxy: Proxy, peer: Peer) -> None:
    proxy.arm(Fault("fetch", "opaque"))
    assert peer.fetch(b"a", opaque=5)[0].opaque == b"1000005"


@pytest.mark.parametrize("kind", ["cut", "hang"])
def test_a_value_that_stops_in_the_middle_ends_the_connection_or_nothing(proxy: Proxy, peer: Peer, kind: str) -> None:
    proxy.arm(Fault("fetch", kind))
    started = time.monotonic()
    assert peer.fetch(b"a", seconds=0.5) == []
    assert (time.monotonic() - started > 0.4) == (kind == "hang")


@pytest.mark.parametrize(("kind", "is_there"), [("refuse", False), ("fail", False), ("flip", True), ("swap", True)])
def test_a_store_is_refused_or_damaged_at_rest(proxy: Proxy, peer: Peer, kind: str, is_there: bool) -> None:
    proxy.arm(Fault("store", kind, "payload" if kind == "flip" else ""))
    answer = peer.store(b"c" + kind.encode(), record(b"c"))[0]
    assert answer.code == (b"HD" if is_there else b"SERVER_ERROR")
    fetched = peer.fetch(b"c" + kind.encode())
    assert [frame.code for frame in fetched] == ([b"VA", b"MN"] if is_there else [b"MN"])
    assert fetched[0].value != record(b"c")


@pytest.mark.parametrize("kind", ["drop", "refuse"])
def test_an_acknowledgement_is_lost_or_turned_into_a_refusal_though_the_record_is_stored(
    proxy: Proxy, peer: Peer, kind: str
) -> None:
    proxy.arm(Fault("ack", kind))
    key = b"d" + kind.encode()
    assert [frame.code for frame in peer.store(key, record(b"d"))] == [
        *([b"SERVER_ERROR"] if kind == "refuse" else []), b"MN",
    ]  # fmt: skip
    assert peer.fetch(key)[0].value == record(b"d")


def test_a_black_hole_holds_back_and_then_goes_on(proxy: Proxy, peer: Peer) -> None:
    proxy.black_hole(True)
    time.sleep(0.05)
    assert peer.fetch(b"a", seconds=0.3) == []
    proxy.black_hole(False)
    assert [frame.code for frame in peer.fetch(b"a")][:1] == [b"VA"]


def test_a_cut_ends_every_connection_and_new_ones_work(proxy: Proxy, peer: Peer) -> None:
    proxy.cut()
    time.sleep(0.05)
    assert peer.fetch(b"a") == []
    again = Peer(proxy)
    assert again.fetch(b"a")[0].value == record(b"a")
    again.close()


def test_a_throttled_direction_takes_as_long_as_its_bytes_and_a_delay_is_added_to_each_answer(
    proxy: Proxy, peer: Peer
) -> None:
    """Two arms of one run."""
    started = time.monotonic()
    peer.fetch(b"a")
    free = time.monotonic() - started
    proxy.throttle(10_000.0)  # 5 kB take half a second
    started = time.monotonic()
    assert peer.fetch(b"a")[0].value == record(b"a")
    assert time.monotonic() - started > max(0.3, free)
    proxy.throttle(None)
    proxy.delay(0.2)
    started = time.monotonic()
    assert peer.fetch(b"a")[0].value == record(b"a")
    assert time.monotonic() - started > max(0.18, free)


def test_bytes_without_meta_pass_unchanged_and_the_next_ones_are_swallowed(node: Memcached) -> None:
    with (
        running_proxy("127.0.0.1", node.port) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5.0) as plain,
    ):
        plain.sendall(b"mn\r\nmn\r\n")
        assert _exactly(plain, 8) == b"MN\r\nMN\r\n"
        proxy.swallow(2)
        time.sleep(0.05)
        plain.sendall(b"mn\r\nmn\r\n")
        assert _exactly(plain, 6) == b"\r\nMN\r\n"


def _exactly(plain: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        received += plain.recv(size - len(received))
    return received
