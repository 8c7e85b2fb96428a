"""The small pure parts: files, flags, bodies, events, headers, readiness."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from pagoda_router import headers
from pagoda_router.arguments import build_parser, parse_arguments
from pagoda_router.events import EventSplitter
from pagoda_router.pods import Pod, PodsError, parse_pods
from pagoda_router.readiness import MAX_TIMEOUTS, Answer, Readiness
from pagoda_router.requests import MAX_DECODE_TOKENS, parse_request
from pagoda_router.work import NO_MATCH, Match, prompt_tokens

FLAGS = [
    "--name", "router", "--host", "127.0.0.1", "--port", "8000", "--model-name", "tiny", "--secret-dir", "s",
    "--settings-dir", "d", "--tenants-dir", "t", "--policy", "CacheAware", "--block-tokens", "16",
    "--drain-seconds", "30",
]  # fmt: skip


def test_all_flags_are_read() -> None:
    settings = parse_arguments(FLAGS)
    assert (settings.port, settings.policy, settings.block_tokens, settings.drain_seconds) == (
        8000,
        "CacheAware",
        16,
        30,
    )
    assert str(settings.tenants_dir) == "t"
    without = [flag for flag in FLAGS if flag not in ("--tenants-dir", "t")]
    assert parse_arguments(without).tenants_dir is None
    assert build_parser().prog == "python -m pagoda_router"


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--port", "70000", "--port: expected a whole number from 0 to 65535"),
        ("--policy", "Random", "--policy: invalid choice"),
        ("--block-tokens", "0", "--block-tokens: expected a whole number of at least 1"),
        ("--drain-seconds", "nan", "--drain-seconds: expected seconds"),
        ("--name", " ", "--name: expected a text"),
    ],
)
def test_a_wrong_flag_is_named(flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*FLAGS, flag, value])
    assert message in capsys.readouterr().err


def test_abbreviated_and_unknown_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in ("--drain=3", "--verbose"):
        with pytest.raises(SystemExit):
            parse_arguments([*FLAGS, extra])
    assert "unrecognized arguments: --verbose" in capsys.readouterr().err


def test_pods_are_read() -> None:
    text = '{"pods": [{"name": "chat-0", "engine": "127.0.0.1:4000", "sidecar": "[::1]:4001"}]}'
    assert parse_pods(text) == (Pod("chat-0", "127.0.0.1:4000", "[::1]:4001"),)
    assert parse_pods('{"pods": []}') == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", 'the list "pods"'),
        ('{"pods": [], "more": 1}', 'the list "pods"'),
        ('{"pods": [{"name": "a"}]}', r"pods\[0\]: expected exactly"),
        ('{"pods": [{"name": "a;b", "engine": "h:1", "sidecar": "h:2"}]}', r"pods\[0\].name"),
        ('{"pods": [{"name": "a", "engine": "h", "sidecar": "h:2"}]}', r"pods\[0\].engine: expected \"host:port\""),
        ('{"pods": [{"name": "a", "engine": "h:1", "sidecar": "h:99999"}]}', r"pods\[0\].sidecar"),
        ('{"pods": [{"name": "a", "engine": "h:1", "sidecar": 7}]}', r"pods\[0\].sidecar"),
        ('{"pods": [{"name": "a", "engine": "x/y:1", "sidecar": "h:2"}]}', r"pods\[0\].engine"),
        ('{"pods": [' + ",".join(['{"name": "a", "engine": "h:1", "sidecar": "h:2"}'] * 2) + "]}", r"pods\[1\].name"),
    ],
)
def test_a_wrong_pods_file_names_the_field(text: str, message: str) -> None:
    with pytest.raises(PodsError, match=message):
        parse_pods(text)


@given(st.lists(st.sampled_from([b"data: x\n\n", b"data: y\r\n\r\n", b": ping\n\n"])), st.lists(st.integers(1, 9)))
def test_events_pass_whole_and_unchanged_however_they_are_cut(events: list[bytes], cuts: list[int]) -> None:
    data, splitter, passed = b"".join(events), EventSplitter(), []
    position = 0
    for cut in [*cuts, len(data) + 1]:
        whole = splitter.feed(data[position : position + cut])
        assert whole == b"" or whole.endswith((b"\n\n", b"\r\n\r\n"))
        passed.append(whole)
        position += cut
    assert b"".join(passed) + splitter.rest() == data


def test_the_end_of_a_stream_is_known() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: {}\n\ndata: [DO")
    assert not splitter.is_done
    splitter.feed(b"NE]\n\n")
    assert splitter.is_done


def test_an_endless_event_is_not_held_for_ever() -> None:
    splitter = EventSplitter()
    passed = sum(len(splitter.feed(b"x" * 65536)) for _ in range(64))
    assert passed >= 3 << 20


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"max_tokens": 10}', 10),
        (b'{"max_completion_tokens": 7, "max_tokens": 10, "n": 3}', 21),
        (b'{"max_tokens": 100000}', MAX_DECODE_TOKENS),
        (b'{"max_tokens": "x", "n": true}', 128),
        (b"{}", 128),
    ],
)
def test_generated_tokens_are_guessed_from_the_limits(body: bytes, tokens: int) -> None:
    assert parse_request(body).num_decode_tokens == tokens


def test_prompt_tokens_are_guessed_from_the_longest_known_prefix() -> None:
    assert prompt_tokens(4000, NO_MATCH) == 1000
    assert prompt_tokens(4000, Match(1000, 1000, 2000)) == 2000  # two bytes per token there, so here
    assert prompt_tokens(2000, Match(1000, 1000, 2000)) == 1001


def test_a_request_id_is_made_where_the_given_one_could_do_harm() -> None:
    for given_id, is_kept in (("abc-1", True), ("", False), ("x" * 200, False), ("a b", False)):
        found = headers.request_id(CIMultiDictProxy(CIMultiDict({"X-Request-ID": given_id})))
        assert (found == given_id) is is_kept
        assert found


def test_a_poll_that_began_before_a_failure_says_nothing() -> None:
    readiness = Readiness()
    readiness.polled(readiness.begin_poll(), Answer.READY)
    token = readiness.begin_poll()
    readiness.failed("refused")
    readiness.polled(token, Answer.READY)
    assert (readiness.is_ready, readiness.reason) == (False, "refused")
    readiness.polled(readiness.begin_poll(), Answer.READY)
    assert readiness.is_ready


def test_a_busy_pod_keeps_its_traffic_for_some_timeouts() -> None:
    readiness = Readiness()
    readiness.polled(readiness.begin_poll(), Answer.READY)
    for number in range(MAX_TIMEOUTS):
        assert readiness.is_ready, number
        readiness.polled(readiness.begin_poll(), Answer.TIMEOUT, "late")
    assert (readiness.is_ready, readiness.reason) == (False, "late")
