"""What a session holds, whatever of it overlaps, breaks off or moves."""

import pytest

from proxy.core.turns import Rank, StopReason
from proxy.state.sessions import Residency
from tests.gate.stage import Stage


def test_a_title_does_not_take_its_sessions_place():
    """A small request of the same session with another head leaves what the session holds."""
    stage = Stage()
    stage.rest("one", 50, head=1, head_blocks=10)
    title = stage.enter("one", 0.4, head=2, chain=(1,), output_limit_tokens=512)
    during = stage.used()
    stage.finish(title, completion=20, stop=StopReason.END_TURN)

    assert during >= 50
    assert stage.used() >= 50
    assert stage.ask("one", 51, head=1, head_blocks=10).expected_tokens == 50_000


def test_side_requests_do_not_count_a_session_twice():
    """A session with a turn in flight and one that has ended holds its prefix once."""
    stage = Stage()
    main = stage.enter("one", 40)
    side = stage.enter("one", 41)
    stage.finish(main)

    assert stage.used() <= 60
    stage.finish(side)


def test_two_turns_aborted_before_their_first_token_leave_nothing():
    """Neither ever had anything there."""
    stage = Stage()
    first, second = stage.ask("one", 10), stage.ask("one", 10)
    stage.abort(first)
    stage.abort(second)

    assert stage.used() == 0


def test_a_returning_turn_aborted_before_its_first_token_is_not_believed_cached():
    """Its session was out; nothing was computed, so it still is."""
    stage = Stage()
    stage.rest("one", 40)
    stage.wait(400)
    stage.rest("two", 90)
    assert stage.session("one").residency is Residency.OUT
    stage.wait(400)

    stage.abort(stage.ask("one", 41))

    assert stage.session("one").residency is not Residency.IN
    assert stage.ledger().idle_of(stage.session("one")) == 0


def test_a_session_cut_by_a_restart_is_out():
    """Its next turn needs room like any other."""
    stage = Stage()
    cut = stage.enter("one", 40)
    stage.gate.see_restart("a", stage.now + 0.1)
    stage.wait(1)
    stage.abort(cut)

    assert stage.session("one").residency is not Residency.IN


def test_a_small_request_that_waited_takes_nothing_from_its_session():
    """It waited as control while its session's first turn ran and ended; what that left is still counted."""
    stage = Stage(blocks=100)
    title = stage.arrive("one", 1, chain=(1,), output_limit_tokens=50, head=2)
    main = stage.arrive("one", 50, head=1)
    assert title.rank is Rank.CONTROL
    stage.gate.queue.remove(title)  # it waits a little longer than the other one
    stage.pump()
    stage.gate.first_token(stage.placed[main.id], stage.now)
    stage.finish(stage.placed[main.id])
    stage.gate.queue.add(title)
    before = stage.used()
    stage.pump()
    stage.finish(stage.placed[title.id], stop=StopReason.END_TURN)

    assert stage.used() == pytest.approx(before, abs=1)


def test_the_largest_of_overlapping_turns_stands_for_the_session_whichever_ends_last():
    """A small turn that outlives the main one does not shrink what lies there."""
    stage = Stage()
    main = stage.enter("one", 40)
    small = stage.enter("one", 5, extends=False)
    stage.finish(main)
    stage.finish(small)

    assert stage.used() >= 40


@pytest.mark.parametrize("is_small", [True, False])
def test_a_side_call_that_outlives_the_main_turn_leaves_it_resident(is_small):
    """A title that is still being written when the main turn ends."""
    stage = Stage()
    stage.rest("one", 40, head=1)
    main = stage.enter("one", 41, head=1)
    title = stage.enter("one", 1 if is_small else 10, head=2, chain=(1,), output_limit_tokens=512)
    stage.finish(main)
    stage.finish(title, stop=StopReason.END_TURN)

    assert stage.session("one").residency is Residency.IN
    assert stage.ledger().idle_of(stage.session("one")) >= 40
    stage.now += 20
    assert stage.ask("one", 42, head=1).expected_tokens == 41_000


def test_a_turn_that_dies_before_its_first_token_takes_no_other_ones_blocks():
    """Its sister began later and ended well."""
    stage = Stage()
    early = stage.ask("one", 10)
    stage.finish(stage.enter("one", 40, extends=False))
    stage.abort(early)

    assert stage.ledger().idle_of(stage.session("one")) >= 40


def test_a_new_conversation_under_the_old_name_is_no_side_call_for_ever():
    """Another head, small at first, and turn after turn: it is the session now."""
    stage = Stage()
    stage.rest("one", 60, head=1)
    for blocks in (5, 10, 15, 20, 25):
        stage.wait(5)
        stage.rest("one", blocks, head=2)

    assert stage.ask("one", 28, head=2).expected_tokens == 25_000


def test_sizes_that_become_known_leave_no_debt():
    """Turns that began before are not booked, and not given back either."""
    stage = Stage(blocks=0)
    before = stage.enter("one", 500)
    stage.size("a", 100)
    after = stage.enter("two", 40)
    stage.finish(before)
    stage.finish(after)

    assert stage.ledger().pinned_blocks == 0
    assert stage.room().inflight == 0


def test_forgotten_sessions_hold_nothing():
    """Who is forgotten after two hours leaves the ledger too."""
    stage = Stage()
    stage.rest("one", 30)
    stage.wait(7_201)
    stage.rest("two", 5)

    assert stage.session("one") is None
    assert stage.used() == pytest.approx(5, abs=1)


def test_aborted_turns_leave_nothing():
    """Before the first token nothing lies there; afterwards the prompt does."""
    stage = Stage()
    stage.abort(stage.ask("early", 30))
    assert stage.used() == 0
    assert stage.session("early").residency is Residency.NEW

    late = stage.enter("late", 30)
    stage.abort(late)
    assert stage.used() == pytest.approx(30, abs=1)


def test_the_head_that_sessions_share_is_counted_once():
    """Tools and instructions of one client version lie there once."""
    stage = Stage()
    for number in range(5):
        stage.rest(f"s{number}", 15, head=99, head_blocks=10)

    assert stage.used() == pytest.approx(10 + 5 * 5, abs=6)


def test_a_placement_says_what_of_its_prompt_is_believed_cached():
    """Nothing, the head that others use, the session's own prefix, or that on another backend."""
    stage = Stage("a", "b")
    first = stage.enter("one", 30, head=99, head_blocks=10, candidates=("a",))
    second = stage.enter("two", 30, head=99, head_blocks=10, candidates=("a",))
    stage.finish(first)
    again = stage.enter("one", 31, head=99, head_blocks=10, candidates=("a",))
    stage.finish(again)
    elsewhere = stage.enter("one", 32, head=99, head_blocks=10, candidates=("b",))

    assert [one.prefix for one in (first, second, again, elsewhere)] == ["cold", "shared", "warm", "moved"]


def test_nothing_is_said_of_the_prefix_on_an_engine_of_unknown_size():
    """Nobody keeps count of what lies there."""
    stage = Stage(blocks=0)
    stage.rest("one", 30)

    assert stage.enter("one", 31).prefix == "unknown"


def test_growing_answers_are_booked():
    """A long answer takes room while it is written."""
    stage = Stage()
    placement = stage.enter("one", 10)
    stage.gate.generated(placement, 5_000)

    assert stage.used() == 15
    stage.gate.generated(placement, 5_100)
    assert stage.used() == 15
    stage.finish(placement, completion=5_100)
    assert stage.used() == pytest.approx(16, abs=1)


def test_a_session_that_moved_while_a_turn_ran_rests_at_its_new_home():
    """The turn at the old one ends last; what lies at the new one is what counts."""
    stage = Stage("a", "b")
    old = stage.enter("one", 30, candidates=("a",))
    new = stage.enter("one", 31, candidates=("b",))
    stage.finish(new)
    stage.finish(old)

    assert stage.session("one").home == "b"
    assert stage.ledger("b").idle_of(stage.session("one")) >= 31
    assert stage.used("a") == 0


def test_what_was_computed_elsewhere_does_not_lie_at_home():
    """The turn at the new home dies before its first token: nothing of it lies there, wherever the other one ran."""
    stage = Stage("a", "b")
    old = stage.enter("one", 30, candidates=("a",))
    stage.abort(stage.ask("one", 31, candidates=("b",)))
    stage.finish(old)

    assert stage.session("one").residency is Residency.OUT
    assert stage.used("a") == stage.used("b") == 0


def test_a_turn_from_before_the_size_was_known_settles_its_session():
    """It took nothing itself; its sister's blocks lie there when it ends last."""
    stage = Stage(blocks=0)
    before = stage.enter("one", 30)
    stage.size("a", 100)
    after = stage.enter("one", 31)
    stage.finish(after)
    stage.finish(before)

    assert stage.session("one").residency is Residency.IN
    assert stage.ledger().idle_of(stage.session("one")) >= 31


def test_two_aborted_sisters_leave_neither_a_place_nor_blocks():
    """The second one found the first in flight, and nothing else."""
    stage = Stage()
    stage.rest("one", 10)
    stage.gate.see_restart("a", stage.now)
    stage.wait(1)
    first, second = stage.ask("one", 11), stage.ask("one", 11)
    stage.abort(first)
    stage.abort(second)

    assert stage.session("one").residency is Residency.OUT
    assert stage.used() == 0


def test_a_restart_takes_what_running_turns_found_there():
    """A turn of a resident dies with its engine; a sister that began afterwards has computed its prompt."""
    stage = Stage()
    stage.rest("one", 15)
    stage.rest("two", 15)
    dead, other = stage.ask("one", 16), stage.ask("two", 16)
    stage.gate.see_restart("a", stage.now + 0.1)
    stage.wait(1)
    sister = stage.enter("two", 17)
    stage.abort(dead)
    stage.finish(sister)
    stage.abort(other)

    assert stage.session("one").residency is Residency.OUT
    assert stage.used() == stage.ledger().idle_of(stage.session("two")) >= 17
