"""The parser against a stream written by hand, cut into reads in every way."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_sidecar.pool.meta import ProtocolError, Response, ResponseParser, Sink, parse_line

_lines = st.sampled_from([b"HD s5 O3", b"EN", b"NS O9", b"MN", b"STAT item_size_max 1048576", b"SERVER_ERROR out of x"])
_values = st.tuples(st.integers(0, 99), st.binary(max_size=3000))
_Part = bytes | tuple[int, bytes]


def _stream(parts: Sequence[_Part]) -> bytes:
    return b"".join(
        part + b"\r\n" if isinstance(part, bytes) else b"VA %d c7 O%d\r\n%b\r\n" % (len(part[1]), part[0], part[1])
        for part in parts
    )


class _Reader:
    """Feeds a parser as a socket would: never more than there is room for, and only as much as the test says."""

    def __init__(self) -> None:
        self.values: list[bytearray] = []
        self.parser = ResponseParser(self._sink_for)

    def _sink_for(self, response: Response) -> Sink:
        memory = bytearray(response.size or 0)
        self.values.append(memory)
        view = memoryview(memory)
        return view[:100], view[100:100], view[100:]

    def read(self, data: bytes) -> list[Response]:
        responses = []
        while data:
            taken = 0
            for buffer in self.parser.buffers():
                piece = data[taken : taken + len(buffer)]
                buffer[: len(piece)] = piece
                taken += len(piece)
            data = data[taken:]
            responses += self.parser.received(taken)
        return responses


@given(st.lists(_lines | _values, max_size=12), st.data())
def test_any_cut_of_the_stream_into_reads_gives_the_same(parts: list[_Part], data: st.DataObject) -> None:
    stream = _stream(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    reader = _Reader()
    responses = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        responses += reader.read(stream[start:end])
    assert [bytes(value) for value in reader.values] == [part[1] for part in parts if isinstance(part, tuple)]
    assert responses == [
        parse_line(part)
        if isinstance(part, bytes)
        else Response(b"VA", len(part[1]), {b"c": b"7", b"O": b"%d" % part[0]})
        for part in parts
    ]
    assert reader.parser.is_idle


@given(st.lists(_lines | _values, min_size=1, max_size=3))
def test_one_byte_at_a_time_gives_the_same_and_is_idle_only_between_responses(parts: list[_Part]) -> None:
    reader = _Reader()
    num_responses = 0
    for part in parts:
        stream = _stream([part])
        for index in range(len(stream)):
            num_responses += len(reader.read(stream[index : index + 1]))
            assert reader.parser.is_idle == (index == len(stream) - 1)
    assert num_responses == len(parts)


@given(st.binary(max_size=2000))
def test_garbage_is_refused_or_waits_but_never_breaks_the_parser(garbage: bytes) -> None:
    reader = _Reader()
    try:
        responses = reader.read(garbage)
    except ProtocolError:
        return
    assert len(responses) <= garbage.count(b"\r\n")


def test_a_payload_is_received_in_its_place_but_for_its_first_kilobyte() -> None:
    memory = bytearray(100_000)
    parser = ResponseParser(lambda _: (memoryview(memory),))
    line = b"VA 100000 O1\r\n"
    parser.buffers()[0][: len(line)] = line
    assert len(parser.buffers()[0]) == 1024
    parser.received(len(line))
    first = parser.buffers()[0]
    assert len(first) == 100_000
    first[:] = b"x" * 100_000
    assert memory == b"x" * 100_000


def test_a_sink_of_very_many_pieces_is_handed_out_in_turns() -> None:
    piece = memoryview(bytearray(2))
    parser = ResponseParser(lambda response: [piece] * ((response.size or 0) // 2))
    line = b"VA 4000 O1\r\n"
    parser.buffers()[0][: len(line)] = line
    parser.received(len(line))
    missing = 4000
    while missing:
        assert len(parser.buffers()) <= 1000  # what the kernel takes
        num_bytes = min(missing, sum(map(len, parser.buffers())))
        parser.received(num_bytes)
        missing -= num_bytes
    assert not parser.is_idle  # the end of the value is awaited


@pytest.mark.parametrize(
    "stream",
    [
        b"ERROR\r\n",
        b"CLIENT_ERROR bad command line format\r\n",
        b"VA\r\n",
        b"VA x O1\r\n",
        b"VA -1 O1\r\n",
        b"VA 99999999999 O1\r\n",
        b"VA 3 O1\r\nabcdef\r\n",
        b"\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"x" * 2000,
    ],
)
def test_what_memcached_does_not_say_is_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        _Reader().read(stream)


def test_a_number_that_is_missing_is_refused() -> None:
    assert parse_line(b"HD O12 c5").number(b"O") == 12
    with pytest.raises(ProtocolError):
        parse_line(b"HD c5").number(b"O")
