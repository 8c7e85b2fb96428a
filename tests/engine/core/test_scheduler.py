"""Plans: within budget and pages, decodes first, in order of arrival, the earliest always gets on."""

from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.core.scheduler import Candidate, Chunk, Limits, Need, StepPlan, may_enter, plan

LIMITS = Limits(block_tokens=4, max_batch_tokens=10, max_preemptions=2)


def candidate(
    name: str, computed: int, tokens: int, pages: int, own: int | None = None, is_blocked: bool = False
) -> Candidate:
    return Candidate(name, computed, tokens, pages, pages if own is None else own, is_blocked)


def test_decodes_come_first_and_prompts_share_what_is_left_in_order_of_arrival():
    made = plan([candidate("a", 0, 8, 0), candidate("b", 6, 7, 2), candidate("c", 0, 5, 0)], 100, LIMITS)
    assert made == StepPlan((Chunk("a", 0, 8), Chunk("b", 6, 7), Chunk("c", 0, 1)), ())


def test_a_large_prompt_takes_what_is_left_and_is_not_passed_by_later_ones():
    made = plan([candidate("large", 0, 300, 0), candidate("small", 0, 2, 0)], 100, LIMITS)
    assert made.chunks == (Chunk("large", 0, 10),)


def test_a_prompt_is_cut_to_the_pages_there_are_before_anybody_is_preempted():
    made = plan([candidate("a", 4, 12, 1), candidate("b", 0, 8, 0)], 1, LIMITS)
    assert made == StepPlan((Chunk("a", 4, 8),), ())


def test_who_can_do_nothing_takes_the_pages_of_the_latest_arrival():
    made = plan([candidate("a", 4, 5, 1), candidate("b", 4, 5, 1), candidate("c", 5, 6, 2)], 0, LIMITS)
    assert made == StepPlan((Chunk("a", 4, 5), Chunk("b", 4, 5)), ("c",))


def test_nobody_takes_pages_from_an_earlier_arrival_and_the_latest_waits():
    made = plan([candidate("a", 5, 6, 2), candidate("b", 4, 5, 1)], 0, LIMITS)
    assert made == StepPlan((Chunk("a", 5, 6),), ())


def test_preemptions_per_step_are_bounded_even_if_the_need_is_not_met():
    shared = [candidate(name, 4, 5, 1, own=0) for name in "bcde"]
    made = plan([candidate("a", 4, 5, 1), *shared], 0, LIMITS)
    assert made == StepPlan((), ("e", "d"))


def test_a_blocked_request_computes_nothing_but_can_be_preempted():
    made = plan([candidate("a", 4, 5, 1), candidate("b", 4, 9, 1, is_blocked=True)], 0, LIMITS)
    assert made == StepPlan((Chunk("a", 4, 5),), ("b",))


def test_a_request_enters_only_beside_what_is_promised_but_always_when_it_is_alone():
    assert may_enter(Need(3, num_revived=1), 6, 2, is_alone=False)
    assert not may_enter(Need(3, num_revived=1), 6, 3, is_alone=False)
    assert may_enter(Need(3, num_revived=1), 4, 99, is_alone=True)


@st.composite
def candidates(draw):
    made = []
    for number in range(draw(st.integers(1, 6))):
        pages = draw(st.integers(0, 6))
        computed = draw(st.integers(0, 4 * pages))
        tokens = computed + draw(st.integers(1, 30))
        made.append(candidate(str(number), computed, tokens, pages, draw(st.integers(0, pages)), draw(st.booleans())))
    return made


@given(candidates(), st.integers(0, 12), st.integers(1, 40), st.integers(1, 3))
def test_every_plan_keeps_the_rules(made_of, num_available, max_batch_tokens, max_preemptions):
    made = plan(made_of, num_available, Limits(4, max_batch_tokens, max_preemptions))
    by_id = {one.request_id: one for one in made_of}
    assert sum(chunk.stop - chunk.start for chunk in made.chunks) <= max_batch_tokens
    assert len(made.preempted) == len(set(made.preempted)) <= max_preemptions
    assert not {chunk.request_id for chunk in made.chunks} & set(made.preempted)
    taken = sum(max(0, -(-chunk.stop // 4) - by_id[chunk.request_id].num_pages) for chunk in made.chunks)
    assert taken <= num_available + sum(by_id[name].num_own_pages for name in made.preempted)
    for chunk in made.chunks:
        one = by_id[chunk.request_id]
        assert not one.is_blocked
        assert (chunk.start, chunk.stop) == (one.num_computed, min(chunk.stop, one.num_tokens))
        assert chunk.stop > chunk.start
    # Whoever was preempted came after somebody who could otherwise have done nothing.
    if made.preempted:
        stuck = [one for one in made_of if not one.is_blocked and one.num_computed == 4 * one.num_pages]
        assert stuck
        assert all(int(name) > int(stuck[0].request_id) for name in made.preempted)
    # The earliest that may compute does, or everybody after it is on the way out.
    able = [one for one in made_of if not one.is_blocked]
    if able and able[0].request_id not in {chunk.request_id for chunk in made.chunks}:
        decodes = [one for one in able if one.num_wanted == 1]
        is_out_of_budget = able[0].num_wanted > 1 and len(decodes) >= max_batch_tokens
        later = [one for one in made_of if int(one.request_id) > int(able[0].request_id)]
        assert is_out_of_budget or len(made.preempted) == min(max_preemptions, len(later))
