from math import inf

import pytest

from proxy.core.turns import Rank, SessionKey
from proxy.gate.openings import Opening, Openings, Widest
from tests.gate.random_walk import BACKENDS, RandomWalk
from tests.gate.stage import Stage


def openings_of(stage, *, is_enforcing=True):
    """What a pump would see now."""
    openings = Openings(stage.gate.rooms, stage.gate.lessons, stage.gate.sessions, is_enforcing=is_enforcing)
    openings.begin(stage.now)
    return openings


def test_a_full_backend_is_closed_for_all_that_are_larger():
    """Sixty blocks run: what is left bounds who is looked at."""
    stage = Stage("a", "b")
    stage.enter("one", 60, candidates=("a",))
    small, large = stage.arrive("small", 10), stage.arrive("large", 50)
    openings = openings_of(stage)

    assert openings.usable(large, ("a", "b")) == ["b"]
    assert openings.usable(small, ("a", "b")) == ["a", "b"]
    line = stage.gate.queue.up_to(Rank.SESSION, inf)
    assert [one.waiting for one in line] == [small, large]
    assert openings.worth_a_look(line, openings.widest(("a",))) == line[:1]
    assert openings.worth_a_look(line, openings.widest(("a", "b"))) == line
    assert openings.worth_a_look(line, openings.widest(("a",)), {large.number}) == line


def test_nobody_is_kept_from_an_empty_backend_or_one_of_unknown_size():
    """A whale goes alone; nothing is decided where nothing is known."""
    stage = Stage("a", "b", blocks=0)
    stage.size("a", 100)
    whale = stage.arrive("whale", 500)

    assert openings_of(stage).usable(whale, ("a", "b")) == ["a", "b"]


def test_for_a_few_looks_no_bound_is_worked_out():
    """It would cost as much as they do."""
    stage = Stage()
    stage.enter("one", 60)
    large = stage.arrive("large", 50)
    openings = openings_of(stage)
    assert not openings.may_fit(large, "a")

    openings.begin(stage.now, looks=2)

    assert openings.may_fit(large, "a")


def test_idle_places_close_it_for_newcomers_and_not_for_their_owner():
    """(B) is for those that have nothing there; a resident's turn needs (A) only."""
    stage = Stage()
    stage.rest("one", 40)
    stage.enter("two", 40)
    back, new = stage.arrive("one", 41), stage.arrive("new", 41)
    openings = openings_of(stage)

    assert openings.may_run(back, "a")
    assert openings.may_fit(back, "a")
    assert not openings.may_fit(new, "a")


def test_what_lies_at_home_of_one_that_is_out_is_not_needed_twice():
    """It needs no more there than it has grown by; a larger one does not fit though it lives there."""
    stage = Stage()
    stage.rest("one", 40)
    stage.enter("two", 40)
    session = stage.gate.sessions.get(SessionKey("", "one"))
    assert session is not None
    stage.gate.rooms["a"].ledger.idle.give_up_place(session)
    back, grown = stage.arrive("one", 45), stage.arrive("one", 99)

    assert openings_of(stage).may_fit(back, "a")
    assert not openings_of(stage).may_fit(grown, "a")


def test_only_a_sub_agent_whose_parent_is_in_may_borrow():
    """Others are larger than what there is, and are not looked at closely."""
    stage = Stage()
    stage.enter("parent", 40)
    stage.rest("idle", 40)
    child = stage.arrive("parent", 20, agent="x")
    orphan = stage.arrive("nobody", 20, agent="x")
    openings = openings_of(stage)
    assert openings.of("a").session_blocks < 20 <= openings.of("a").agent_blocks

    assert openings.may_fit(child, "a")
    assert not openings.may_fit(orphan, "a")


def test_cold_prompts_close_it_for_others_that_have_not_waited_long():
    """(C): what is computed is bounded; after half a minute one passes whatever its size."""
    stage = Stage(blocks=1_000, batch=8_192)
    stage.enter("one", 12)
    stage.arrive("first", 12)
    cold = stage.arrive("cold", 12)
    stage.ask("two", 12)
    assert not openings_of(stage).may_fit(cold, "a")
    stage.wait(31)

    assert openings_of(stage).may_fit(cold, "a")


def test_it_is_looked_at_again_where_something_was_placed():
    """Elsewhere what was seen still holds."""
    stage = Stage()
    stage.enter("one", 40)
    openings = openings_of(stage)
    before = openings.of("a")
    stage.ask("two", 20)

    openings.forget("b")
    openings.forget(None)
    assert openings.of("a") is before
    openings.forget("a")
    assert openings.of("a").session_blocks < before.session_blocks


def test_it_is_looked_at_again_once_a_prompt_counts_as_computed():
    """Nothing tells so: half a second and half as long again as its prompt takes have passed."""
    stage = Stage(blocks=1_000, batch=8_192)
    stage.ask("one", 12)
    openings = openings_of(stage)
    before = openings.of("a")
    assert before.until == stage.now + 0.5 + 1.5 * 12_000 / 3_000

    openings.begin(before.until)
    assert openings.of("a") is before
    openings.begin(before.until + 0.1)
    assert openings.of("a").prefill_tokens > before.prefill_tokens


def test_it_is_looked_at_again_once_a_lease_is_over():
    """What idle sessions hold can be had then."""
    stage = Stage()
    stage.rest("one", 40)
    stage.enter("two", 40)
    openings = openings_of(stage)
    before = openings.of("a")
    stage.wait(400)
    openings.begin(stage.now)

    assert openings.of("a").session_blocks > before.session_blocks


def test_one_that_is_narrower_everywhere_lets_in_nobody_else():
    """Who is waiting for more than that need not be looked at again."""
    wide = Widest(longest_tokens=10.0, longest_agent_tokens=11.0, prefill_tokens=5.0)

    assert Widest(9.0, 11.0, 4.0).is_within(wide)
    assert not Widest(9.0, 12.0, 4.0).is_within(wide)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_is_never_narrower_than_what_is_there(seed):
    """Whatever happens: a room that grew unseen would keep somebody waiting who could start."""
    walk = RandomWalk(seed)
    kept = walk.gate._openings
    for _ in range(1_500):
        walk.step()
        anew = Openings(walk.gate.rooms, walk.gate.lessons, walk.gate.sessions, is_enforcing=True)
        anew.begin(walk.now)
        kept.begin(walk.now)
        for name in BACKENDS:
            seen, fresh = kept.of(name), anew.of(name)
            pairs = zip(fresh[:6], seen[:6], strict=True)
            is_for_this_moment = seen.until == walk.now  # then somebody whose time is over may be behind another
            assert is_for_this_moment or all(new <= max(0.0, old) + 1e-3 for new, old in pairs)


def test_in_shadow_mode_everything_is_open():
    """Nobody waits there."""
    stage = Stage()
    stage.enter("one", 90)

    assert openings_of(stage, is_enforcing=False).of("a") == Opening()
