import pytest

from proxy.core.turns import StopReason
from proxy.state.calibration import ReturnOdds
from proxy.state.sessions import Residency
from tests.gate.rooms import NOW, resting, room_of, session_of


def test_leases_that_are_over_are_taken_back_oldest_first_and_no_more_than_needed():
    """All or nothing, in the engine's own order."""
    room = room_of()
    first = resting(room, "first", 30)
    second = resting(room, "second", 30)
    third = resting(room, "third", 30)
    new = session_of("new", turns=0)

    assert not room.fits_set(new, 30, 0, NOW + 10)
    assert {s.residency for s in (first, second, third)} == {Residency.IN}
    room.report_at = NOW + 301
    assert room.fits_set(new, 30, 0, NOW + 301)
    assert [s.residency for s in (first, second, third)] == [Residency.OUT, Residency.IN, Residency.IN]
    assert room.ledger.idle_blocks == 60


def test_a_running_lease_protects_what_lies_behind_it():
    """The engine gives away in its own order: what is younger cannot go first."""
    room = room_of()
    resting(room, "long", 40, stop=StopReason.TOOL_USE)
    short = resting(room, "short", 40, stop=StopReason.END_TURN)

    assert not room.fits_set(session_of("new", turns=0), 40, 0, NOW + 8)
    assert short.residency is Residency.IN


def test_who_is_out_keeps_no_lease():
    """Its blocks are the first to be taken."""
    room = room_of()
    out = resting(room, "out", 60)
    room.ledger.idle.give_up_place(out)

    assert room.fits_set(session_of("new", turns=0), 60, 0, NOW + 1)
    assert room.ledger.idle_blocks == 0


def test_the_next_lease_end_is_the_first_that_still_runs():
    """One that is over does not hide the one behind it."""
    room = room_of()
    resting(room, "over", 10, stop=StopReason.END_TURN)
    resting(room, "runs", 10, stop=StopReason.TOOL_USE)
    first, second = room.leases.next_end(NOW + 1, NOW), room.leases.next_end(NOW + 10, NOW)

    assert first is not None
    assert second is not None
    assert NOW + 1 < first < NOW + 10 < second
    assert room.leases.next_end(NOW + 1_000, NOW) is None


@pytest.mark.parametrize(("named", "waits"), [(True, True), (False, False)])
def test_a_session_seen_once_is_waited_for_as_its_kind_has_returned(named, waits):
    """Where nobody ever comes back nobody's place is kept; where agents name themselves it is."""
    odds = ReturnOdds()
    for _ in range(30):
        odds.on_first_turn(is_named=False)
    room = room_of(odds=odds)
    once = resting(room, "s" if named else "prompt:1", 60, turns=1)

    assert room.fits_set(session_of("new", turns=0), 60, 0, NOW + 1) is not waits
    assert (once.residency is Residency.IN) is waits
