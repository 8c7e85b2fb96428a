"""The table against a model that knows no bound and no cleverness, and the stream's rules."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.digests import DIGEST_VERSION
from pagoda_protocol.live import LiveSettings
from pagoda_protocol.tenants import Tenants
from pagoda_router.errors import HintError
from pagoda_router.hints import PodHints
from pagoda_router.messages import TIERS, Epoch, Head, Rows
from pagoda_router.requests import Digester
from pagoda_router.table import HintTable
from pagoda_router.work import NO_MATCH, Match

HEAD = Head(DIGEST_VERSION, ("tiny",), b"\1" * 16, 16, {"device": "d", "ram": "r", "disk": "k"})


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


rows = st.dictionaries(
    st.integers(0, 20).map(digest), st.tuples(st.integers(1, 500), st.sampled_from(TIERS), st.floats(0, 9)), max_size=6
)
messages = st.one_of(
    st.builds(Rows, rows, st.lists(st.integers(0, 20).map(digest), max_size=4).map(tuple)),
    st.builds(Epoch, st.sampled_from(TIERS), st.sampled_from(["a", "b", None])),
)


@given(st.lists(messages, max_size=40), st.integers(1, 30))
def test_the_table_is_the_plain_model_as_far_as_it_has_room(steps: list[Rows | Epoch], capacity: int) -> None:
    table = HintTable(HEAD, capacity)
    model: dict[bytes, tuple[int, str]] = {}
    epochs: dict[str, str | None] = dict(HEAD.epochs)
    for step in steps:
        table.apply(step)
        if isinstance(step, Epoch):
            epochs[step.tier] = step.epoch
            model = {key: row for key, row in model.items() if row[1] != step.tier}
        else:
            for key in [*step.drop, *step.set]:
                model.pop(key, None)
            for key, (tokens, tier, _) in step.set.items():
                if epochs[tier] is not None:
                    model[key] = (tokens, tier)
        held = {key: row[:2] for key, row in table.rows().items()}
        assert held.items() <= model.items()
        if capacity > 20:
            assert held == model
        table.check_integrity()


def test_the_longest_known_digest_counts_and_the_device_part_of_it() -> None:
    table = HintTable(HEAD, 100)
    points = tuple((digest(i), 512 * i) for i in range(1, 6))
    assert table.match(points) == NO_MATCH
    table.apply(Rows({digest(1): (100, "device", 0), digest(2): (200, "device", 0), digest(4): (400, "ram", 0)}, ()))
    assert table.match(points) == Match(400, 200, 2048)
    assert table.match(points[:2]) == Match(200, 200, 1024)
    table.apply(Epoch("device", "d2"))
    assert table.match(points) == Match(400, 0, 2048)


def test_what_lies_on_disk_alone_is_told_apart_from_what_lies_in_ram_or_better() -> None:
    table = HintTable(HEAD, 100)
    points = tuple((digest(i), 512 * i) for i in range(1, 6))
    table.apply(Rows({digest(4): (400, "disk", 0)}, ()))
    assert table.match(points) == Match(400, 0, 2048, 400)
    table.apply(Rows({digest(2): (200, "ram", 0)}, ()))
    assert table.match(points) == Match(400, 0, 2048, 200)
    table.apply(Rows({digest(1): (100, "device", 0)}, ()))
    assert table.match(points) == Match(400, 100, 2048, 200)
    table.apply(Rows({digest(4): (400, "device", 0)}, ()))
    assert table.match(points) == Match(400, 400, 2048, 0)
    table.apply(Rows({digest(5): (500, "disk", 0)}, ()))
    table.apply(Epoch("disk", None))
    assert table.match(points) == Match(400, 400, 2048, 0)


def test_a_sidecar_that_knows_of_no_disk_is_understood() -> None:
    hints = opened()
    hints.feed(line(8, type="rows", set=[["ab" * 16, 160, "disk", 1]]))
    assert hints.num_rows == 0, "a tier without an epoch holds nothing"
    hints.feed(line(9, type="epoch", tier="disk", epoch="d"))
    hints.feed(line(10, type="rows", set=[["ab" * 16, 160, "disk", 1]]))
    assert hints.num_rows == 1


def test_over_capacity_the_hot_rows_stay_for_a_while() -> None:
    table = HintTable(HEAD, 100)
    table.apply(Rows({digest(i): (16, "device", 50.0) for i in range(20)}, ()))
    for start in range(100, 400, 50):
        table.apply(Rows({digest(i): (16, "device", 0.0) for i in range(start, start + 50)}, ()))
        table.check_integrity()
        assert all(digest(i) in table.rows() for i in range(20))
    for start in range(1000, 9000, 50):
        table.apply(Rows({digest(i): (16, "device", 0.0) for i in range(start, start + 50)}, ()))
    assert not any(digest(i) in table.rows() for i in range(20))  # heat that is not said again cools


def test_over_capacity_hot_rows_alone_go_by_age() -> None:
    table = HintTable(HEAD, 100)
    table.apply(Rows({digest(i): (16, "device", 50.0) for i in range(101)}, ()))
    assert set(table.rows()) == {digest(i) for i in range(11, 101)}
    table.resize(10)
    assert set(table.rows()) == {digest(i) for i in range(92, 101)}
    table.check_integrity()


def test_k4_memory_is_flat_over_50k_unique_prompts() -> None:
    hints = PodHints("tiny", capacity=20_000)
    hints.feed(line(0, **HEAD_LINE))
    digester = Digester(bytes(32), Tenants, LiveSettings)
    sizes = []
    for batch in range(1000):
        added = []
        for number in range(50 * batch, 50 * batch + 50):
            body = {"model": "tiny", "prompt": f"{number:08} " * 450}  # 4,050 characters
            points = digester.points("tenant:a", [b""], body)
            assert points is not None
            assert hints.table is not None
            assert hints.table.match(points[b""]) == NO_MATCH
            added += [[found.hex(), position // 4, "device", 1] for found, position in points[b""]]
        hints.feed(line(batch + 1, type="rows", set=added, drop=[]))
        if batch in (200, 999):
            sizes.append(resident_bytes())
    assert hints.num_rows <= 20_000
    # 40,000 more prompts of 8 digests would be over 70 MB if they stayed.
    assert sizes[1] - sizes[0] < 16 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


HEAD_LINE: dict[str, Any] = {
    "type": "head", "digest_version": DIGEST_VERSION, "models": ["tiny"], "template_digest": "01" * 16,
    "block_tokens": 16, "epochs": {"device": "d", "ram": "r"},
}  # fmt: skip
LOAD = {"type": "load", "num_running": 0, "num_waiting": 0}
ROW = ["ab" * 16, 160, "device", 1.5]


def line(sequence: int, **fields: Any) -> bytes:
    return json.dumps({"sequence": sequence, **fields}).encode()


def opened(**head: Any) -> PodHints:
    hints = PodHints("tiny", capacity=100)
    hints.feed(line(7, **{**HEAD_LINE, **head}))
    return hints


def test_a_gap_in_the_sequence_is_an_error() -> None:
    hints = opened()
    hints.feed(line(8, type="rows", set=[ROW]))
    with pytest.raises(HintError, match="sequence: expected 9, found 10"):
        hints.feed(line(10, type="beat"))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ({}, None),
        ({"digest_version": DIGEST_VERSION + 1}, "digest_version"),
        ({"models": ["other"]}, "other_model"),
        ({"models": [], "template_digest": "", "epochs": {"device": None, "ram": "r"}}, "no_engine"),
    ],
)
def test_a_head_that_does_not_fit_is_not_believed_and_says_why(head: dict[str, Any], reason: str | None) -> None:
    assert opened(**head).degraded == reason
    assert PodHints("tiny", 100).degraded == "no_hints"


def test_lines_of_another_digest_version_are_not_read() -> None:
    hints = opened(digest_version=DIGEST_VERSION + 1)
    hints.feed(b'{"type": "something new"}')
    assert hints.num_rows == 0


def test_a_closed_stream_takes_its_rows_with_it() -> None:
    hints = opened()
    hints.feed(line(8, type="rows", set=[ROW]))
    assert hints.num_rows == 1
    hints.closed()
    assert (hints.num_rows, hints.degraded) == (0, "no_hints")


def test_reported_work_counts_as_far_as_it_is_others_and_drains() -> None:
    now, num_own = 0.0, 3
    hints = PodHints("tiny", 100, lambda: num_own, lambda: now)
    hints.feed(line(0, **HEAD_LINE))
    load = {"type": "load", "prefill_tokens_per_second": 410.0, "free_work_seconds": 2.0, "outstanding_seconds": 8.0}
    hints.feed(line(1, num_running=2, num_waiting=1, **load))
    assert hints.others_seconds() == 0.0  # all three are ours, however long the pod thinks they take
    hints.feed(line(2, num_running=2, num_waiting=2, **load))
    assert hints.others_seconds() == 2.0
    now = 1.5
    assert hints.others_seconds() == 0.5
    now = 9.0
    assert hints.others_seconds() == 0.0

    num_own = 0
    hints.request_ended()
    hints.feed(line(3, num_running=1, num_waiting=0, **load))
    assert hints.others_seconds() == 0.0  # said before the pod knew the end
    now = 11.0
    hints.feed(line(4, num_running=1, num_waiting=0, **load))
    assert hints.others_seconds() == 8.0
    hints.feed(line(5, type="epoch", tier="device", epoch=None))
    assert hints.others_seconds() == 0.0
    assert hints.report is not None
    assert hints.report.load.prefill_tokens_per_second == 410.0


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"type": "rows", "set": [["ab", 1, "device", 1]]}, "set"),
        ({"type": "rows", "set": [["ab" * 16, -1, "device", 1]]}, "tokens"),
        ({"type": "rows", "set": [["ab" * 16, 1, "pool", 1]]}, "tier"),
        ({"type": "rows", "set": [["ab" * 16, 1, "ram", None]]}, "heat"),
        ({"type": "rows", "set": {}}, "set"),
        ({"type": "rows", "drop": ["xy"]}, "drop"),
        ({"type": "epoch", "tier": "pool"}, "tier"),
        ({"type": "epoch", "tier": "ram", "epoch": 3}, "epoch"),
        ({"type": "load", "num_waiting": 0}, "num_running"),
        ({**LOAD, "outstanding_seconds": "1"}, "outstanding_seconds"),
        ({**LOAD, "free_work_seconds": 10**400}, "free_work_seconds"),
        ({"type": "unheard"}, "type"),
        ({"type": ["x"]}, "type"),
        (HEAD_LINE, "second head"),
    ],
)
def test_a_wrong_line_names_its_field(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(HintError, match=path):
        opened().feed(line(8, **fields))


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_a_hint_error(data: bytes) -> None:
    hints = opened()
    try:
        hints.feed(data)
    except HintError:
        pass
