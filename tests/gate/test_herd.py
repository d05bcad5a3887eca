"""Prompts with one head that nobody has computed: one goes, the others wait for its first token, or two seconds."""

import pytest

from tests.gate.stage import Stage

HEAD = 7
SHARED = {"head": HEAD, "head_blocks": 12.0}


def herd(stage, size=6, **more):
    """So many new sessions with one head at once."""
    waiting = [stage.arrive(f"s{number}", 14, **{**SHARED, **more}) for number in range(size)]
    stage.pump()
    return waiting


def test_one_warms_the_head_and_the_others_follow_with_its_first_token():
    """All to the same backend, the only one."""
    stage = Stage(blocks=200)
    waiting = herd(stage)
    assert list(stage.placed) == [waiting[0].id]
    assert stage.gate.counters["herd_holds"] == 5

    stage.wait(0.4)
    stage.gate.first_token(stage.placed[waiting[0].id], stage.now)
    assert len(stage.pump("a")) == 5


def test_nobody_is_kept_for_longer_than_two_seconds():
    """And somebody looks then, though nothing happens."""
    stage = Stage(blocks=200)
    herd(stage)
    began = stage.now
    assert stage.gate.next_event_at(stage.now) == began + 2.0

    stage.now = began + 1.9
    assert stage.pump() == []
    stage.now = began + 2.0
    assert len(stage.pump()) == 5


def test_a_head_that_lies_there_holds_nobody():
    """Whether its users run or rest."""
    stage = Stage(blocks=200)
    stage.rest("before", 14, **SHARED)
    stage.wait(1)
    herd(stage)

    assert len(stage.placed) == 7


def test_when_the_one_that_went_breaks_off_the_next_goes():
    """The head is still cold, so the others go on waiting, for that one."""
    stage = Stage(blocks=200)
    waiting = herd(stage)
    stage.wait(0.5)
    stage.abort(stage.placed[waiting[0].id])

    assert len(stage.pump("a")) == 1
    stage.gate.first_token(stage.placed[waiting[1].id], stage.now)
    assert len(stage.pump("a")) == 4


def test_a_restart_lets_the_others_go_within_two_seconds():
    """Nothing can be waited for for ever."""
    stage = Stage(blocks=200)
    herd(stage)
    stage.gate.see_restart("a", stage.now)
    stage.wait(2.0)

    assert len(stage.pump()) == 5


def test_small_heads_hold_nobody():
    """A thousand tokens are computed in no time."""
    stage = Stage(blocks=200)
    herd(stage, head_blocks=1.0)

    assert len(stage.placed) == 6


def test_residents_are_never_held():
    """A turn of a session that is in goes at once, though its head has changed to one that is being computed."""
    stage = Stage(blocks=200)
    stage.rest("mine", 14)
    stage.ask("other", 14, **SHARED)

    assert stage.ask("mine", 15, extends=False, **SHARED) is not None


def test_it_can_be_switched_off():
    """Then all go at once."""
    stage = Stage(blocks=200, holds_herd=False)
    herd(stage)

    assert len(stage.placed) == 6
    assert stage.gate.counters["herd_holds"] == 0


def test_in_shadow_mode_nobody_is_held():
    """There nobody ever waits."""
    stage = Stage(blocks=200, is_enforcing=False)
    herd(stage)

    assert len(stage.placed) == 6


def test_an_engine_that_caches_nothing_holds_nobody():
    """Each computes it anyway."""
    stage = Stage(blocks=200)
    for _ in range(25):
        stage.room().prefixes.on_turn(10_000, 0)
    herd(stage)

    assert len(stage.placed) == 6


def test_each_idle_backend_is_warmed_once_and_the_others_are_kept_for_them_in_equal_parts():
    """Whoever is kept goes to the backend that it was kept for, whichever is first."""
    stage = Stage("a", "b", "c", blocks=400)
    waiting = herd(stage, size=12)
    assert sorted(placement.backend for placement in stage.placed.values()) == ["a", "b", "c"]
    kept = [one.kept_for for one in waiting if one.id not in stage.placed]
    assert sorted(kept) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3

    first = next(iter(stage.placed.values()))
    stage.wait(0.3)
    stage.gate.first_token(first, stage.now)
    assert len(stage.pump(first.backend)) == 3
    assert stage.room(first.backend).inflight == 4


def test_whoever_gives_up_leaves_nothing():
    """What was promised for it goes with the head's first token at the latest."""
    stage = Stage(blocks=200)
    waiting = herd(stage)
    for one in waiting[1:]:
        stage.gate.give_up(one, stage.now, keeps_ticket=False)
    stage.arrive("unlike", 500)  # somebody waits, so that there is a reason to look
    stage.gate.first_token(stage.placed[waiting[0].id], stage.now)

    stage.gate.next_event_at(stage.now)

    assert not stage.gate._herd._until
    assert not stage.gate._herd._promised


def test_what_was_promised_does_not_outlive_the_herd():
    """Nobody waits any more, so nobody asks when to look again; still the next one must not pay for them."""
    stage = Stage("a", "b", blocks=400)
    waiting = herd(stage, candidates=("a",))
    stage.gate.first_token(stage.placed[waiting[0].id], stage.now)
    assert len(stage.pump("a")) == 5
    for placement in list(stage.placed.values()):
        stage.finish(placement)
    stage.wait(10)

    stage.enter("other head", 14, head=8, head_blocks=12.0)
    assert not stage.gate._herd.is_keeping(stage.now)
    assert stage.enter("next", 14, **SHARED).backend == "a"


def test_what_a_herd_waits_for_is_told_apart_from_room():
    """As long as the head is being computed, and not a moment longer; who went first was never held."""
    stage = Stage(blocks=60)
    waiting = herd(stage, size=4, head_blocks=2.0)
    first, *others = waiting
    assert [one.herd_wait_s(stage.now) for one in waiting] == [None, 0.0, 0.0, 0.0]

    stage.wait(0.4)
    stage.gate.first_token(stage.placed[first.id], stage.now)
    stage.pump("a")
    assert [one.id in stage.placed for one in others] == [True, True, False]  # 2 and three times 12 and growth are 60
    stage.wait(5.0)

    assert [one.herd_wait_s(stage.now) for one in others] == [pytest.approx(0.4)] * 3


def test_a_hold_that_nobody_saw_end_is_no_longer_than_it_may_be():
    """Two seconds, though the next look comes much later."""
    stage = Stage(blocks=200)
    _, one, *_ = herd(stage)
    stage.wait(1.0)
    assert one.herd_wait_s(stage.now) == 1.0
    stage.wait(9.0)

    assert one.herd_wait_s(stage.now) == 2.0
    stage.pump()
    assert one.herd_wait_s(stage.now + 60) == 2.0


def test_who_is_held_again_for_the_next_one_waits_for_both():
    """The first broke off, so that somebody else computes the head; both holds count, and not what lay between."""
    stage = Stage(blocks=200)
    first, second, third, *_ = herd(stage)
    stage.wait(0.5)
    stage.abort(stage.placed[first.id])
    stage.pump("a")
    assert second.id in stage.placed
    stage.wait(0.75)
    stage.gate.first_token(stage.placed[second.id], stage.now)
    stage.pump("a")

    assert (second.herd_wait_s(stage.now), third.herd_wait_s(stage.now)) == (0.5, 1.25)
