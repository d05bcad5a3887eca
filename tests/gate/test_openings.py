from math import inf

from proxy.gate.openings import Opening, Openings
from tests.gate.stage import Stage


def openings_of(stage, *, is_enforcing=True):
    """What a pump would see now."""
    openings = Openings(stage.gate.rooms, stage.gate.lessons, is_enforcing=is_enforcing)
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
    assert openings.worth_a_look([large, small], ("a",)) == [(1, small)]
    assert openings.worth_a_look([large, small], ("a", "b")) == [(0, large), (1, small)]


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

    openings.forget("b", None)
    assert openings.of("a") is before
    openings.forget("a")
    assert openings.of("a").session_blocks < before.session_blocks


def test_in_shadow_mode_everything_is_open():
    """Nobody waits there."""
    stage = Stage()
    stage.enter("one", 90)

    assert openings_of(stage, is_enforcing=False).of("a") == Opening() == (inf,) * 6
