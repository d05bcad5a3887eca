import pytest

from proxy.gate.engine_room import EngineRoom
from proxy.policy.limit import Limit
from proxy.state.calibration import ReturnGaps, ReturnOdds
from proxy.state.sessions import Residency
from tests.gate.rooms import NOW, resting, room_of, running, session_of
from tests.gate.stage import Stage


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


def test_running_turns_never_get_more_than_the_labels_say():
    """Past the labels there may be room for idle prefixes; running turns that do not fit would preempt each other."""
    room = room_of()
    room.limit = Limit(theta=1.2)
    running(room, 1, 60)
    resting(room, "idle", 10)
    growth = room.growth_blocks(2)

    assert room.fits_running(session_of("next"), 40 - growth, 0, NOW)
    assert not room.fits_running(session_of("next"), 41 - growth, 0, NOW)
    assert room.opening_blocks(NOW)[0] == pytest.approx(40 - growth, abs=0.001)


def test_idle_prefixes_may_fill_what_the_engine_showed_to_have():
    """Where it holds more than its labels say, a newcomer takes nobody's place."""
    room = room_of()
    resting(room, "idle", 90)
    running(room, 1, 5)

    def fits():
        return room.fits_set(session_of("new"), 10, 0, NOW)

    assert not fits()
    room.limit = Limit(theta=1.2)
    assert fits()
    assert room.ledger.idle_blocks == 90


def test_growth_is_learned_from_the_first_turn_on():
    """A plain mean at first, so that what begins together is soon expected to grow; then a twentieth at a time."""
    room = room_of()
    room.note_turn_growth(3_000)
    room.note_turn_growth(1_000)
    assert room.turn_growth_tokens == pytest.approx(2_000)

    for _ in range(200):
        room.note_turn_growth(500)
    assert room.turn_growth_tokens == pytest.approx(500, rel=0.01)


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
