"""What pods say is read strictly: a pod may say anything."""

from typing import Any

import pytest

from pagoda_operator.scrape.answers import MAX_TEXT, AnswerError, read_ready, read_summary
from pagoda_protocol.annotations import decode_prefix_hits
from tests.operator.scrape.pods import READY, as_bytes, ready, summary


def test_an_engine_that_is_ready_says_its_generation_and_proof() -> None:
    answer = read_ready(200, as_bytes(ready()))
    assert (answer.ready, answer.generation, answer.reason) == (True, 3, "")
    assert answer.proof == {"generated": True, "tiers": {"ram": "ok", "disk": "none", "pool": "ok"}, "state": "12" * 8}


def test_an_engine_that_is_not_ready_says_why() -> None:
    answer = read_ready(
        503, as_bytes({"status": "not ready", "reason": "warming up", "generation": None, "proof": None})
    )
    assert (answer.ready, answer.generation, answer.proof, answer.reason) == (False, None, None, "warming up")


def test_a_reason_is_one_short_line_whatever_the_pod_says() -> None:
    answer = read_ready(503, as_bytes({"reason": "a\nb\x1b[31m" + "x" * 10_000}))
    assert answer.reason.startswith("a b [31mxxx")
    assert len(answer.reason) == MAX_TEXT


def test_a_summary_is_kept_without_its_hits_which_become_the_annotation() -> None:
    answer = read_summary(200, as_bytes(summary(unknown="field")))
    assert answer.summary == {key: value for key, value in summary().items() if key != "hits"}
    hits = [(hit.digest[-1], hit.tokens, hit.tier, hit.heat) for hit in decode_prefix_hits(answer.hits)]
    assert hits == [(1, 512, "ram", 8), (2, 64, "device", 2)]


def test_pods_of_a_former_release_say_no_marks() -> None:
    answer = read_ready(200, as_bytes(ready(proof={key: READY["proof"][key] for key in ("generated", "tiers")})))
    assert answer.proof is not None
    assert answer.proof["state"] is None
    tiers = with_tier("pool", {"state": "on", "reason": "", "nodes": {}})
    said = read_summary(200, as_bytes({key: value for key, value in summary(tiers=tiers).items() if key != "state"}))
    assert (said.summary["state"], said.summary["tiers"]["pool"]["list"]) == (None, None)


@pytest.mark.parametrize("nothing", ["", None])
def test_a_mark_of_nothing_is_not_the_same_as_none(nothing: str | None) -> None:
    assert read_summary(200, as_bytes(summary(state=nothing))).summary["state"] == ""
    answer = read_ready(200, as_bytes(ready(proof=READY["proof"] | {"state": nothing})))
    assert answer.proof is not None
    assert answer.proof["state"] == ""


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", -1), ("generation", "3"), ("generation", True), ("proof", 1), ("proof", {"generated": 1}),
        ("proof", {"generated": True, "tiers": []}), ("proof", {"generated": True, "tiers": {"ram": "ok"}}),
    ],
)  # fmt: skip
def test_an_answer_of_ready_that_is_not_right_is_refused(status: int, field: str, value: Any) -> None:
    with pytest.raises(AnswerError, match=r"generation|proof|tiers|disk"):
        read_ready(status, as_bytes(ready(reason="") | {field: value}))


def with_tier(name: str, tier: Any) -> dict[str, Any]:
    tiers: dict[str, Any] = summary()["tiers"]
    return tiers | {name: tier}


def with_nodes(nodes: Any) -> dict[str, Any]:
    return with_tier("pool", {"state": "on", "reason": "", "nodes": nodes})


def with_list(mark: str) -> dict[str, Any]:
    return with_tier("pool", {"state": "on", "reason": "", "list": mark, "nodes": {}})


D = "00" * 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2), ("epochs", None), ("epochs", {"ram": "AB" * 16}), ("epochs", {"ram": "ab"}),
        ("hit_ratio", 1.5), ("hit_ratio", "0.8"), ("namespace", ""), ("namespace", "x"), ("block_tokens", 1.5),
        ("protocol", "2"), ("tiers", {}), ("tiers", {"ram": {"state": "on"}}),
        ("tiers", with_tier("disk", {"state": "broken", "reason": ""})), ("tiers", with_nodes({"a": {"state": "on"}})),
        ("tiers", with_nodes(dict.fromkeys(map(str, range(101))))),
        ("state", 7), ("state", "12"), ("state", "XY" * 8), ("tiers", with_list("xy")),
        ("hits", None), ("hits", [[D, 1, "ram", 1]] * 101), ("hits", [["00", 1, "ram", 1]]), ("hits", [7]),
        ("hits", [[D, 1, "pool", 1]]), ("hits", [[D, 1.5, "ram", 1]]), ("hits", [[D, -1, "ram", 1]]),
        ("hits", [[D, 1, "ram", float("inf")]]), ("hits", [[D, 1, "ram", float("nan")]]),
        ("hits", [[D, 1, "ram", None]]), ("hits", [[D, 1, "ram"]]), ("hits", [[7, 1, "ram", 1]]),
    ],
)  # fmt: skip
def test_a_summary_that_is_not_right_is_refused_by_field(field: str, value: Any) -> None:
    with pytest.raises(AnswerError, match=field):
        read_summary(200, as_bytes(summary(**{field: value})))


NOVEL = "long\n" * 10_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", NOVEL), ("epochs", {"ram": NOVEL}), ("hit_ratio", NOVEL), ("namespace", NOVEL), ("tiers", NOVEL),
        ("tiers", with_tier("disk", {"state": NOVEL, "reason": ""})), ("tiers", with_nodes({NOVEL: {"state": "on"}})),
        ("hits", [[D, 1, NOVEL, 1]]), ("hits", [[NOVEL, 1, "ram", 1]]), ("hits", [NOVEL]),
    ],
)  # fmt: skip
def test_what_is_said_of_a_wrong_summary_is_short_and_of_one_line(field: str, value: Any) -> None:
    with pytest.raises(AnswerError, match=field) as refused:
        read_summary(200, as_bytes(summary(**{field: value})))
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"7", b"\xff\xfe", b"[" * 60_000, b"1" * 5000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(AnswerError):
        read_summary(200, body)
    with pytest.raises(AnswerError):
        read_ready(503, body)


@pytest.mark.parametrize("status", [301, 404, 500])
def test_another_status_is_no_answer(status: int) -> None:
    with pytest.raises(AnswerError, match=str(status)):
        read_ready(status, as_bytes(ready()))
    with pytest.raises(AnswerError, match=str(status)):
        read_summary(status, as_bytes(summary()))
