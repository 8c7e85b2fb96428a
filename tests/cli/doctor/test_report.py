"""What the doctor prints, and with which status it ends."""

import json

import pytest

from pagoda_cli.doctor.codes import CODES, Severity
from pagoda_cli.doctor.finding import CLUSTER, Finding, Place
from pagoda_cli.doctor.report import Report, as_json, as_text, unread_report
from pagoda_cli.main import main

POOL = Place("InferencePool", "chat", "shop")


def report(*codes: str) -> Report:
    findings = tuple(Finding(code, POOL, f"seen {number}") for number, code in enumerate(codes))
    return Report("https://10.0.0.1:6443", None, "2026-11-30T12:00:00+00:00", 2, findings)


@pytest.mark.parametrize(
    ("codes", "status"),
    [((), 0), (("PGD004",), 0), (("PGD004", "PGD058"), 0), (("PGD054",), 1), (("PGD090", "PGD004"), 1),
     (("PGD001", "PGD054"), 2), (("PGD099",), 3)],
)  # fmt: skip
def test_the_exit_status_follows_from_the_worst_finding(codes: tuple[str, ...], status: int) -> None:
    assert report(*codes).status == status


def test_the_text_says_each_code_once_with_all_that_was_seen_and_what_to_do() -> None:
    text = as_text(report("PGD054", "PGD054", "PGD004"))
    assert text.count(CODES["PGD054"].title) == 1
    for words in (
        "WARNING PGD054",
        "InferencePool shop/chat: seen 0",
        "seen 1",
        "means: ",
        "to do: ",
        "INFO    PGD004",
    ):
        assert words in text
    assert text.endswith("2 pools in all namespaces of https://10.0.0.1:6443: 2 warnings, 1 info")


def test_nothing_broken_is_said_too() -> None:
    assert as_text(report()) == "2 pools in all namespaces of https://10.0.0.1:6443: nothing is broken"


def test_the_json_has_a_form_that_programs_can_rely_on() -> None:
    document = json.loads(as_json(report("PGD054")))
    assert document == {
        "version": 1,
        "checkedAt": "2026-11-30T12:00:00+00:00",
        "cluster": "https://10.0.0.1:6443",
        "namespace": None,
        "pools": 2,
        "status": 1,
        "findings": [
            {
                "code": "PGD054",
                "severity": "warning",
                "title": CODES["PGD054"].title,
                "object": {"kind": "InferencePool", "namespace": "shop", "name": "chat"},
                "seen": "seen 0",
                "meaning": CODES["PGD054"].meaning,
                "remedy": CODES["PGD054"].remedy,
            }
        ],
    }


def test_an_unread_cluster_has_the_same_form() -> None:
    document = json.loads(as_json(unread_report("", "shop", "2026-11-30T12:00:00+00:00", "no route")))
    assert document["status"] == 3
    assert document["namespace"] == "shop"
    assert document["findings"][0]["object"] == {"kind": CLUSTER.kind, "namespace": "", "name": ""}


def test_every_code_says_what_it_means_and_what_to_do() -> None:
    for name, code in CODES.items():
        assert name.startswith("PGD")
        assert len(name) == 6
        assert not code.title.endswith(".")
        assert code.meaning.endswith(".")
        assert code.remedy.endswith("."), name
    assert {code.severity for code in CODES.values()} == set(Severity)


def test_the_help_names_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "0 when nothing is broken, 1 with warnings, 2 with errors, 3 when the cluster cannot be read" in text
