"""How long a newcomer would wait, for the Retry-After of who is refused: learned from room that really comes free."""

import pytest

from proxy.core.turns import StopReason
from proxy.policy.queueing import HEAD_RESERVATION_S
from tests.gate.stage import BLOCK, Stage


def waiting_behind(stage, blocks):
    """So much waits ahead of a newcomer."""
    for number in range(blocks // 10):
        stage.arrive(f"ahead {number}", 10)


def test_while_nothing_has_come_free_it_is_a_guess():
    """A minute, whatever waits."""
    stage = Stage()
    stage.enter("busy", 90)
    waiting_behind(stage, 50)

    assert stage.gate.expected_wait_s(stage.now) == HEAD_RESERVATION_S


def test_turns_that_leave_nothing_behind_give_room():
    """Twenty blocks every ten seconds: who has a hundred ahead waits for fifty seconds."""
    stage = Stage()
    for _ in range(6):
        broken = stage.ask("broken", 20)
        stage.wait(5)
        stage.abort(broken)
        stage.wait(5)
    stage.enter("busy", 90)
    waiting_behind(stage, 100)

    assert stage.gate.expected_wait_s(stage.now) == pytest.approx(50, rel=0.1)


def test_places_that_are_taken_over_give_room():
    """Each newcomer takes the place of one whose lease is over; no segment ends and nobody is cut."""
    stage = Stage()
    for number in range(6):
        stage.rest(f"s{number}", 45, stop=StopReason.END_TURN)
        stage.wait(45)
    stage.enter("busy", 90)
    waiting_behind(stage, 100)

    wait_s = stage.gate.expected_wait_s(stage.now)

    assert stage.gate.counters.get("segments_ended", 0) == 0
    assert 60 <= wait_s <= 150


def test_a_session_that_stays_gives_no_room():
    """Its turns end, its place does not."""
    stage = Stage()
    for number in range(6):
        stage.rest("one", 20 + number)
        stage.wait(5)
    waiting_behind(stage, 100)

    per_s = stage.room().release.look(stage.now)

    assert per_s < 0.1 * BLOCK


def test_a_busy_minute_long_ago_does_not_count():
    """What comes free now does."""
    stage = Stage()
    for _ in range(6):
        broken = stage.ask("broken", 20)
        stage.wait(5)
        stage.abort(broken)
        stage.wait(5)
    for _ in range(600):
        stage.wait(1)
    stage.enter("busy", 90)
    waiting_behind(stage, 100)

    assert stage.gate.expected_wait_s(stage.now) > 600
