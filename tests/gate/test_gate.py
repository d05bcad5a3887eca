import pytest

from proxy.core.turns import Rank, StopReason
from proxy.state.sessions import Residency
from tests.gate.stage import Stage


def test_what_fits_starts_at_once_and_what_does_not_waits():
    """(B): two sessions of forty blocks, and a third one only when there is room."""
    stage = Stage()
    first, second = stage.enter("one", 40), stage.enter("two", 40)
    third = stage.arrive("three", 40)

    assert stage.pump() == []
    assert (first.admission, second.admission) == ("new", "new")
    assert third.rank is Rank.SESSION

    stage.finish(first)
    assert stage.pump() == []  # it will be back: its lease runs
    stage.wait(400)
    assert stage.pump() == ["three"]
    assert stage.session("one").residency is Residency.OUT


def test_a_returning_turn_passes_while_newcomers_wait():
    """L30: turns of admitted sessions are never blocked by new ones."""
    stage = Stage()
    stage.rest("one", 40)
    stage.rest("two", 40)
    waiting = [stage.arrive(f"new {number}", 40) for number in range(10)]
    stage.wait(5)

    back = stage.ask("one", 41)

    assert back is not None
    assert back.admission == "resident"
    assert back.expected_tokens == 40_000
    assert not any(entry.id in stage.placed for entry in waiting)


def test_a_turn_waits_for_running_ones_and_starts_when_one_ends():
    """(A): what runs, with what it may still write, has to fit."""
    stage = Stage()
    stage.rest("one", 40)
    busy = stage.enter("two", 40)
    again = stage.enter("one", 41)
    side = stage.arrive("two", 41)

    assert side.rank is Rank.RESIDENT
    assert stage.pump() == []
    stage.finish(again)
    stage.finish(busy)
    assert stage.pump() == ["two"]


def test_a_sub_agent_is_a_session_of_its_own():
    """L06: what it holds is counted for itself."""
    stage = Stage()
    stage.rest("one", 20)
    stage.rest("one", 20, agent="x")

    assert stage.used() == pytest.approx(42, abs=2)
    assert stage.session("one", agent="x") is not stage.session("one")


def test_parent_and_sub_agents_do_not_wait_for_each_other():
    """The parent holds its place while it waits for them; they may borrow, and all come to an end."""
    stage = Stage()
    stage.rest("one", 60)
    waiting = [stage.arrive("one", 20, agent=f"agent {number}") for number in range(6)]
    for _ in range(100):
        stage.pump()
        running = [stage.placed[entry.id] for entry in waiting if entry.id in stage.placed]
        for placement in running:
            stage.gate.first_token(placement, stage.now)
            stage.finish(placement, stop=StopReason.END_TURN)
            waiting.remove(placement.waiting)
        if not waiting:
            break
        stage.wait(5)

    assert waiting == []
    assert stage.now < 1_000 + 240
    parent = stage.arrive("one", 61)
    stage.wait(31)
    stage.pump()
    assert parent.id in stage.placed


def test_a_sub_agent_may_borrow_where_a_stranger_waits():
    """A tenth of the limit, while its parent is in."""
    stage = Stage()
    stage.rest("one", 45)
    stage.enter("two", 40)

    assert stage.ask("stranger", 10) is None
    assert stage.ask("one", 10, agent="x") is not None


def test_a_whale_goes_alone():
    """What is larger than the limit starts on an empty engine; what can never fit too, for the engine's own error."""
    stage = Stage()
    busy = stage.enter("small", 5)
    whale = stage.arrive("whale", 150)

    assert stage.pump() == []
    stage.finish(busy)
    assert stage.pump() == ["whale"]
    stage.gate.first_token(stage.placed[whale.id], stage.now)
    assert stage.ask("next", 5) is None
    stage.finish(stage.placed[whale.id])


def test_whoever_has_waited_a_minute_is_not_overtaken():
    """The head reservation: small ones arrive all the time, and the large one gets its turn."""
    stage = Stage()
    for number in range(7):
        stage.enter(f"early {number}", 10)
    large = stage.arrive("large", 70)
    overtaking = []
    for number in range(40):
        stage.wait(5)
        stage.arrive(f"late {number}", 10)
        started = stage.pump()
        if large.id in stage.placed:
            break
        if stage.now - large.stamp > 60:
            overtaking += started
        for placement in list(stage.placed.values()):
            if placement.id in stage.ledger().holds and stage.now - placement.placed_at >= 20:
                stage.gate.first_token(placement, stage.now)
                stage.finish(placement, stop=StopReason.END_TURN)

    assert overtaking == []
    assert large.id in stage.placed
    assert stage.placed[large.id].placed_at <= 1_000 + 120


def test_small_ones_go_first_among_equals():
    """Within a key by size, shrunk by waiting."""
    stage = Stage()
    busy = stage.ask("busy", 90)
    for name, blocks in (("large", 30), ("small", 10), ("medium", 20)):
        stage.arrive(name, blocks)
    stage.wait(5)
    stage.abort(busy)

    assert stage.pump() == ["small", "medium", "large"]


def test_the_least_served_key_goes_first():
    """VTC: who has had more waits behind who has had less."""
    stage = Stage()
    busy = stage.enter("busy", 85, credential="greedy")
    stage.arrive("greedy 2", 30, credential="greedy")
    stage.arrive("modest", 60, credential="modest")
    stage.wait(30)
    stage.finish(busy, stop=StopReason.END_TURN)
    stage.wait(20)

    assert stage.pump()[0] == "modest"


def test_batch_waits_for_everybody():
    """Only when nobody else waits."""
    stage = Stage()
    busy = stage.enter("busy", 80)
    stage.arrive("batch", 20, is_batch=True)
    stage.arrive("session", 90)
    assert stage.pump() == []

    stage.finish(busy, stop=StopReason.END_TURN)
    stage.wait(301)
    assert stage.pump() == ["session"]
    stage.finish(next(p for p in stage.placed.values() if p.waiting.turn.session.session == "session"))
    stage.wait(301)
    assert stage.pump() == ["batch"]


def test_a_small_request_passes_beside_waiting_sessions():
    """A title does not wait behind a hundred thousand tokens, and its place is not kept."""
    stage = Stage(blocks=1_000)
    stage.enter("one", 950)
    stage.arrive("large", 100)

    title = stage.ask("title", 1, chain=(1,), output_limit_tokens=50)

    assert title is not None
    assert title.admission == "control"
    before = stage.used()
    stage.finish(title, stop=StopReason.END_TURN)
    assert stage.used() == before - 1


def test_shadow_mode_lets_all_pass_and_says_who_would_have_waited():
    """It decides and counts, and holds nobody."""
    stage = Stage(is_enforcing=False)

    placements = [stage.enter(f"s{number}", 40) for number in range(5)]

    assert [placement.would_wait for placement in placements] == [False, False, True, True, True]
    for placement in placements:
        stage.finish(placement)
    stage.enter("s0", 41)
    assert stage.used() <= 100


def test_an_engine_of_unknown_size_lets_all_pass():
    """There is nothing to decide by."""
    stage = Stage(blocks=0)

    placements = [stage.enter(f"s{number}", 500) for number in range(20)]

    assert {placement.admission for placement in placements} == {"unlimited"}
    for placement in placements:
        stage.finish(placement)
    assert stage.room().inflight == 0


def test_plain_traffic_is_not_held_back():
    """No harm: 128 small requests of people who never return all start, wave after wave, as far as they fit."""
    stage = Stage(blocks=400, batch=8_192)
    for wave in range(4):
        entries = [stage.arrive(f"prompt:{wave}.{number}", 0.2, chain=(hash((wave, number)),)) for number in range(128)]
        for entry in entries:
            stage.pump()
            if entry.id in stage.placed:
                stage.gate.first_token(stage.placed[entry.id], stage.now)
        stage.wait(1)
        stage.pump()
        waiting = len(stage.gate.queue)
        assert waiting == 0, f"wave {wave}: {waiting} wait, {stage.room()!r}"
        for entry in entries:
            stage.finish(stage.placed[entry.id], completion=200, stop=StopReason.END_TURN)


def test_newcomers_go_where_the_room_is():
    """Two backends: the fuller one is left alone, and a session stays where its prefix is."""
    stage = Stage("a", "b")
    first = stage.enter("one", 60)
    second = stage.enter("two", 60)

    assert {first.backend, second.backend} == {"a", "b"}
    stage.finish(first)
    assert stage.enter("one", 61).backend == first.backend


def test_a_session_follows_when_its_home_is_gone():
    """What lay on the old one is no longer counted there."""
    stage = Stage("a", "b")
    stage.rest("one", 30)
    home = stage.session("one").home
    other = "b" if home == "a" else "a"

    moved = stage.ask("one", 31, candidates=(other,))

    assert moved is not None
    assert moved.backend == other
    assert stage.used(home) == 0
    stage.finish(moved)


def test_residents_make_way_after_their_slice():
    """While somebody waits nobody is resident for ever."""
    stage = Stage(target_wait_s=100.0)
    for name in ("one", "two"):
        stage.rest(name, 40)
    third = stage.arrive("three", 40)
    size = 40.0
    for _ in range(60):
        stage.wait(5)
        stage.pump()
        if third.id in stage.placed:
            break
        size += 0.1
        for name in ("one", "two"):
            if not stage.session(name).is_busy:
                stage.arrive(name, size)
        stage.pump()
        for placement in list(stage.placed.values()):
            if placement.id in stage.ledger().holds:
                stage.gate.first_token(placement, stage.now)
                stage.finish(placement)
    assert third.id in stage.placed
    assert stage.gate.counters["segments_ended"] >= 1


def test_a_cold_answer_where_a_prefix_was_believed_lowers_the_limit():
    """A ghost miss: the engine holds less than we think."""
    stage = Stage()
    stage.rest("one", 40)
    stage.wait(20)
    back = stage.enter("one", 41)
    before = stage.room().limit.theta

    stage.finish(back, cached=0)

    assert stage.room().limit.theta < before
    assert stage.room().ghost_misses == 1


def test_a_changed_prefix_is_no_ghost():
    """L14: a compaction or another tool makes the prompt cold; nothing was evicted."""
    stage = Stage()
    stage.rest("one", 40)
    stage.wait(20)
    compacted = stage.enter("one", 41, extends=False)

    assert compacted.expected_tokens == 0
    stage.finish(compacted, cached=0)
    assert stage.room().ghost_misses == 0


def test_after_a_restart_nothing_is_expected_and_nothing_lowered():
    """The cache is gone with its process: no ghost, no resident, no cut."""
    stage = Stage()
    stage.rest("idle", 30)
    running = stage.enter("running", 30)
    before = stage.room().limit.theta
    stage.gate.see_restart("a", stage.now + 0.5)
    stage.wait(1)
    stage.abort(running)

    assert stage.used() == 0
    for name in ("idle", "running"):
        placement = stage.ask(name, 31)
        assert placement is not None
        assert placement.expected_tokens == 0
        stage.gate.first_token(placement, stage.now)
        stage.finish(placement, cached=0)
    assert stage.room().limit.theta == before


def test_a_lease_that_ends_is_looked_at_in_time():
    """The gate says when to look again, and then somebody starts."""
    stage = Stage()
    stage.rest("one", 40)
    stage.rest("two", 40)
    stage.arrive("three", 40)
    assert stage.pump() == []

    at = stage.gate.next_event_at(stage.now)
    assert at is not None
    stage.wait(at - stage.now + 0.02)
    assert stage.pump() == ["three"]
    assert stage.gate.next_event_at(stage.now) is None


def test_looking_again_goes_on_past_leases_that_are_over():
    """The first lease's end was not enough; the second one's is waited for too, though nothing else happens."""
    stage = Stage()
    stage.rest("one", 20, stop=StopReason.END_TURN)
    stage.rest("two", 60)
    stage.arrive("three", 60)
    stage.wait(10, reports=False)
    assert stage.pump() == []

    at = stage.gate.next_event_at(stage.now)

    assert at is not None
    assert at > stage.now
    stage.wait(at - stage.now + 0.02)
    assert stage.pump() == ["three"]
