import pytest

from proxy.core.capacity import KvCapacity
from proxy.core.turns import SessionKey, StopReason
from proxy.gate.engine_room import EngineRoom
from proxy.state.calibration import ReturnGaps, ReturnOdds
from proxy.state.kv_ledger import Hold
from proxy.state.sessions import Residency, Session
from tests.gate.stage import Stage

NOW = 1_000.0


def room_of(blocks=100, *, batch=10**6):
    """A room of blocks of a thousand tokens, whose engine has just reported."""
    room = EngineRoom(ReturnGaps(), ReturnOdds())
    room.ledger.capacity = KvCapacity(total_blocks=blocks, block_tokens=1_000)
    room.batch_tokens = batch
    room.report_at = NOW
    return room


def session_of(name, *, turns=2, stop=StopReason.TOOL_USE, idle_since=NOW):
    """A resident session."""
    return Session(SessionKey("", name), Residency.IN, turns=turns, last_stop=stop, idle_since=idle_since)


def running(room, number, blocks, *, uncached=0):
    """A turn in flight."""
    hold = Hold(session_of(f"running {number}"), 0, int(blocks * 1_000), uncached, float(blocks), NOW)
    room.ledger.take(number, hold, 0)


def resting(room, name, blocks, **more):
    """An idle resident."""
    session = session_of(name, **more)
    room.ledger.rest(session, float(blocks), 0, 0)
    return session


def test_without_a_size_everything_fits():
    """Nothing is known, so nothing is decided."""
    room = EngineRoom(ReturnGaps(), ReturnOdds())
    stranger = session_of("new")

    assert room.fits_running(stranger, 10**9, 10**9, NOW)
    assert room.fits_set(stranger, 10**9, 10**9, NOW)
    assert room.fits_control(10**9)


def test_the_limit_shrinks_with_the_age_of_the_last_report():
    """5.4: never fully open, never shut."""
    room = room_of()
    fresh, old, silent = (room.limit_blocks(NOW + age) for age in (1, 10, 100))

    assert fresh == pytest.approx(97)
    assert fresh > old > silent > 70


def test_running_turns_and_what_they_may_write_have_to_fit():
    """(A), to the block."""
    room = room_of()
    running(room, 1, 50)
    left = room.limit_blocks(NOW) - 50 - room.growth_blocks(2)

    assert not room.fits_running(session_of("s"), left + 0.01, 0, NOW)
    assert room.fits_running(session_of("s"), left, 0, NOW)


def test_idle_sessions_count_against_newcomers_only():
    """(B): who will be back needs its place, but not before a turn that is here."""
    room = room_of()
    mine = resting(room, "mine", 45)
    resting(room, "other", 45)

    assert not room.fits_set(session_of("new", turns=0), 10, 0, NOW + 1)
    assert room.fits_running(mine, 46, 0, NOW + 1)


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


def test_what_lies_there_of_a_session_is_not_needed_twice():
    """A returning session that was pushed out of its place, though not yet of the cache."""
    room = room_of()
    mine = resting(room, "mine", 60)
    room.ledger.idle.give_up_place(mine)

    assert room.fits_set(mine, 61, 0, NOW + 1)
    assert room.ledger.idle_of(mine) == 60


def test_cold_prompts_wait_for_each_other_and_warm_ones_pass():
    """(C): L31: what is being computed is bounded, and a small addition goes through."""
    room = room_of(1_000, batch=8_192)
    running(room, 1, 12, uncached=12_000)

    assert not room.fits_set(session_of("cold", turns=0), 12, 12_000, NOW)
    assert not room.fits_running(session_of("cold"), 12, 12_000, NOW)
    assert room.fits_running(session_of("warm"), 12, 500, NOW)
    room.ledger.computed(1)
    assert room.fits_set(session_of("cold", turns=0), 12, 12_000, NOW)


def test_a_restart_halves_what_may_be_computed():
    """Slow start: everybody is cold then."""
    room = room_of(1_000, batch=8_192)
    room.forget_residents(NOW)
    running(room, 1, 6, uncached=6_000)

    assert not room.fits_set(session_of("new", turns=0), 6, 6_000, NOW + 1)
    assert room.fits_set(session_of("new", turns=0), 6, 6_000, NOW + 31)


def test_a_restart_leaves_nobody_resident():
    """The cache went with the process."""
    room = room_of()
    idle = resting(room, "idle", 40)
    room.forget_residents(NOW)

    assert idle.residency is Residency.OUT
    assert room.ledger.used_blocks == 0


def test_an_empty_engine_takes_whatever_comes():
    """Liveness: a whale, and what is larger than the whole cache; others go for it."""
    room = room_of()
    idle = resting(room, "idle", 40)

    assert room.fits_set(session_of("whale", turns=0), 500, 500_000, NOW + 1)
    assert idle.residency is Residency.OUT


def test_small_requests_share_a_twentieth():
    """Beside everything else, never beyond the cache."""
    room = room_of(1_000)
    running(room, 1, 900)
    assert room.fits_control(50)
    assert not room.fits_control(51)
    room.control_blocks = 45
    assert room.fits_control(5)
    assert not room.fits_control(6)
    running(room, 2, 98)
    assert not room.fits_control(3)


def test_the_next_lease_end_is_the_first_that_still_runs():
    """One that is over does not hide the one behind it."""
    room = room_of()
    resting(room, "over", 10, stop=StopReason.END_TURN)
    resting(room, "runs", 10, stop=StopReason.TOOL_USE)
    first, second = room.next_lease_end(NOW + 1), room.next_lease_end(NOW + 10)

    assert first is not None
    assert second is not None
    assert NOW + 1 < first < NOW + 10 < second
    assert room.next_lease_end(NOW + 1_000) is None


@pytest.mark.parametrize(("named", "waits"), [(True, True), (False, False)])
def test_a_session_seen_once_is_waited_for_as_its_kind_has_returned(named, waits):
    """Where nobody ever comes back nobody's place is kept; where agents name themselves it is."""
    room = room_of()
    for _ in range(30):
        room.odds.on_first_turn(is_named=False)
    once = resting(room, "s" if named else "prompt:1", 60, turns=1)

    assert room.fits_set(session_of("new", turns=0), 60, 0, NOW + 1) is not waits
    assert (once.residency is Residency.IN) is waits


def test_it_shows_itself():
    """What a person sees in a debugger."""
    assert repr(room_of()).startswith("<EngineRoom theta 0.97, <KvLedger 0/100 blocks")


def test_an_engine_that_says_it_is_full_gets_nobody_until_it_reports():
    """Its word counts for more than our books; not for residents either, and not for ever."""
    stage = Stage("a", "b")
    stage.rest("resident", 10, candidates=("a",))
    stage.wait(1)
    stage.gate.see_overload("a", stage.now)

    assert stage.ask("resident", 11, candidates=("a",)) is None
    elsewhere = stage.ask("new", 10)
    assert elsewhere is not None
    assert elsewhere.backend == "b"
    stage.wait(1)
    assert stage.pump() == ["resident"]


def test_an_engine_that_says_it_is_full_and_no_more_is_asked_again_after_a_moment():
    """Never shut for ever: three seconds, which wake the queue by themselves."""
    stage = Stage()
    stage.gate.see_overload("a", stage.now)
    assert stage.ask("one", 10) is None

    at = stage.gate.next_event_at(stage.now)

    assert at == stage.now + 3
    stage.now = at
    assert stage.pump() == ["one"]


def test_an_answer_that_is_older_than_the_report_says_nothing():
    """What was asked afterwards knows better."""
    stage = Stage()
    stage.gate.see_overload("a", stage.now)
    stage.wait(0.5)

    assert stage.ask("one", 10) is not None


def test_neither_shadow_mode_nor_an_unknown_size_holds_anybody_back():
    """There is nothing to correct."""
    shadow, unknown = Stage(is_enforcing=False), Stage(blocks=0)
    for stage in (shadow, unknown):
        stage.gate.see_overload("a", stage.now)

        assert stage.ask("one", 10) is not None


def test_an_engine_that_reports_every_five_seconds_is_not_distrusted_for_it():
    """The limit between two reports is the limit; what others hold there is still known."""
    stage = Stage(report_interval_s=5.0)
    stage.report(usage=0.5)
    foreign = stage.ledger().foreign_blocks
    fresh = stage.room().limit_blocks(stage.now)
    stage.wait(14, reports=False)

    assert stage.room().limit_blocks(stage.now) == fresh
    stage.wait(10, reports=False)
    assert stage.room().limit_blocks(stage.now) == pytest.approx(0.9 * fresh)
    assert stage.ledger().foreign_blocks == foreign > 0
