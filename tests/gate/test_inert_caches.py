"""Engines whose prefix cache does nothing, or has stopped doing it: nobody stays there for its sake."""

from proxy.policy.limit import GHOST_FLOOR
from tests.gate.stage import Stage


def make_inert(stage, name, turns=25):
    """So many turns that should have been cached were not."""
    for number in range(turns):
        stage.room(name).prefixes.on_turn(10_000 + number, 0)
    assert stage.room(name).prefixes.is_inert


def test_even_a_resident_leaves_an_engine_that_caches_nothing():
    """It would be computed anew at home too, behind whatever is computed there already."""
    stage = Stage("a", "b", blocks=400)
    stage.rest("mine", 30)
    home = stage.session("mine").home
    make_inert(stage, home)
    stage.ask("large", 60, candidates=(home,))

    moved = stage.ask("mine", 31)

    assert moved.backend != home


def test_it_stays_when_something_is_found_again():
    """One hit is proof."""
    stage = Stage("a", "b", blocks=400)
    stage.rest("mine", 30)
    home = stage.session("mine").home
    make_inert(stage, home)
    stage.room(home).prefixes.on_turn(10_000, 9_984)
    stage.ask("large", 60, candidates=(home,))

    assert stage.ask("mine", 31).backend == home


def test_a_cache_that_freezes_after_an_hour_is_noticed_within_twenty_turns():
    """Whatever it found before; until then its misses lower the limit, and from then on they do not."""
    stage = Stage("a", "b", blocks=400)
    stage.rest("mine", 30)
    home = stage.session("mine").home
    for _ in range(240):
        stage.wait(15)
        turn = stage.enter("mine", 30, candidates=(home,))
        stage.finish(turn, cached=turn.expected_tokens)
    assert stage.room(home).limit.theta > 0.9

    for number in range(20):
        assert not stage.room(home).prefixes.is_inert, number
        stage.wait(15)
        stage.finish(stage.enter("mine", 30, candidates=(home,)), cached=0)
    assert stage.room(home).prefixes.is_inert
    theta = stage.room(home).limit.theta
    stage.wait(15)
    stage.finish(stage.enter("mine", 30, candidates=(home,)), cached=0)
    assert stage.room(home).limit.theta == theta


def test_a_cache_that_has_frozen_with_a_system_prompt_in_it_is_noticed_when_the_limit_can_fall_no_more():
    """Each turn finds the head and nothing of its own; then sessions may leave, until one finds its prefix again."""
    stage = Stage("a", "b", blocks=400)
    shared = {"head": 7, "head_blocks": 15.0}
    stage.rest("mine", 40, **shared)
    home = stage.session("mine").home
    turns = 0
    while not stage.room(home).prefixes.is_inert:
        stage.wait(15)
        stage.finish(stage.enter("mine", 40, candidates=(home,), **shared), cached=15_000)
        turns += 1
        assert turns < 50
    assert stage.room(home).limit.theta == GHOST_FLOOR
    assert turns > 20

    stage.ask("large", 60, candidates=(home,))
    elsewhere = stage.ask("mine", 41, **shared)
    assert elsewhere.backend != home
    stage.finish(elsewhere, cached=15_000)

    back = stage.enter("other", 40, candidates=(home,), **shared)
    stage.finish(back, cached=15_000)
    stage.finish(stage.enter("other", 41, candidates=(home,), **shared), cached=40_000)
    assert not stage.room(home).prefixes.is_inert


def test_a_cache_that_does_nothing_does_not_lower_the_limit():
    """It is not overfull."""
    stage = Stage(blocks=400)
    make_inert(stage, "a")
    stage.rest("mine", 30)
    before = stage.room().limit.theta

    stage.finish(stage.enter("mine", 31), cached=0)

    assert stage.room().ghost_misses == 1
    assert stage.room().limit.theta == before
