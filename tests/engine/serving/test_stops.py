from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.serving.stops import StopFilter

TEXT = st.text(alphabet="abé😀", max_size=30)
STOPS = st.lists(st.text(alphabet="abé😀", min_size=1, max_size=4), max_size=4)


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read character by character: the first stop string that is complete ends the text where it starts."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(TEXT, STOPS, st.data())
def test_the_cut_does_not_depend_on_the_pieces_and_nothing_leaks(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    wanted, is_hit = expected(text, stops)
    stop_filter = StopFilter(stops)
    shown, rest = "", text
    while rest and not stop_filter.is_hit:
        size = data.draw(st.integers(1, len(rest)))
        shown += stop_filter.push(rest[:size])
        rest = rest[size:]
        assert wanted.startswith(shown)  # what is out never has to be taken back
    if not stop_filter.is_hit:
        shown += stop_filter.flush()
    assert (shown, stop_filter.is_hit) == (wanted, is_hit)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopFilter(()).push("anything") == "anything"


def test_after_a_hit_everything_is_swallowed() -> None:
    stop_filter = StopFilter(["b"])
    assert stop_filter.push("abc") == "a"
    assert stop_filter.push("d") + stop_filter.flush() == ""
