"""Stories in which somebody could wait for ever."""

import pickle

from proxy.core.turns import Rank, StopReason
from proxy.policy.queueing import HEAD_RESERVATION_S
from proxy.state.sessions import Residency
from tests.gate.stage import Stage


def test_finished_sessions_do_not_keep_room_for_their_growth():
    """Nobody runs, every lease is over, and a large session comes: it starts."""
    stage = Stage()
    for blocks in (1, 4):
        for number in range(15):
            stage.rest(f"s{number}", blocks)
    stage.wait(1_000)
    large = stage.arrive("large", 90)

    stage.pump()
    stage.wait(600)
    stage.pump()

    assert large.id in stage.placed


def test_stale_foreign_load_does_not_shut_an_empty_engine():
    """Others filled it, then its reports stopped: what runs here is nothing, and somebody starts."""
    stage = Stage()
    for _ in range(30):
        stage.wait(1, reports=False)
        stage.report(usage=0.95)
    stage.wait(120, reports=False)

    assert stage.ask("one", 40) is not None


def test_a_session_with_a_turn_in_flight_is_not_pushed_out():
    """It is not idle, however long ago its other turn ended."""
    stage = Stage()
    long_one = stage.enter("one", 30)
    stage.finish(stage.enter("one", 31))
    stage.wait(400)

    stage.ask("two", 50)

    assert stage.session("one").residency is Residency.IN
    stage.finish(long_one)


def test_a_session_with_a_waiting_turn_is_not_pushed_out():
    """It came back within its lease and waits for a running answer; a newcomer must not take its place."""
    stage = Stage()
    stage.rest("one", 40)
    busy = stage.enter("busy", 50)
    back = stage.arrive("one", 46)
    assert back.rank is Rank.RESIDENT
    assert stage.pump() == []
    stage.wait(40)
    stage.arrive("new", 10)

    assert stage.pump() == []
    assert stage.session("one").residency is Residency.IN
    stage.finish(busy)


def test_agents_borrow_from_idle_sessions_and_not_from_running_ones():
    """(A) holds for them too: what runs fits into the limit."""
    stage = Stage()
    stage.enter("one", 60)
    placements = [stage.ask("one", 8, agent=str(number)) for number in range(10)]
    room = stage.room()

    pinned = stage.ledger().pinned_blocks + room.growth_blocks(len(stage.ledger().holds))
    assert any(placements)
    assert pinned <= room.limit_blocks(stage.now) + 1e-6


def test_a_long_served_key_is_not_starved_by_a_new_one():
    """What a key did while nobody else was there is no debt."""
    stage = Stage()
    for _ in range(50):
        stage.rest("old", 60, credential="old", extends=False, stop=StopReason.END_TURN)
        stage.wait(31)
    busy = stage.enter("busy", 85, credential="new")
    started = []
    for number in range(20):
        stage.arrive(f"new {number}", 80, credential="new")
        stage.arrive(f"old {number}", 80, credential="old")
        stage.wait(1)
    for _ in range(10):
        stage.finish(busy, stop=StopReason.END_TURN)
        stage.wait(40)
        started += stage.pump()
        busy = stage.placed[max(stage.ledger().holds)]
        stage.gate.first_token(busy, stage.now)

    assert len([name for name in started if name.startswith("old")]) >= 3


def test_keys_that_come_once_are_not_remembered_for_ever():
    """An open proxy sees any number of credentials."""
    stage = Stage(blocks=0)
    sizes: list[int] = []
    for _ in range(2):
        for number in range(15_000):
            placement = stage.ask("s", 1, credential=f"{len(sizes)}.{number}", chain=())
            stage.finish(placement)
        sizes.append(len(pickle.dumps(stage.gate.lessons)))

    assert sizes[1] < 1.2 * sizes[0]


def test_a_large_cold_prompt_gets_its_turn_between_small_ones():
    """(C): small prompts are always being computed, and the large one is not put off for ever."""
    stage = Stage(blocks=1_000, batch=2_000)
    stage.rest("r0", 10)
    stage.rest("r1", 10)
    computing = stage.ask("r0", 11)
    large = stage.arrive("large", 60)
    size = 11.0
    for number in range(400):
        stage.wait(0.5)
        following = stage.ask(f"r{(number + 1) % 2}", size)
        stage.gate.first_token(computing, stage.now)
        stage.finish(computing)
        computing = following
        stage.pump()
        size += 0.1
        if large.id in stage.placed:
            break

    assert large.id in stage.placed
    assert stage.placed[large.id].placed_at - large.stamp <= 2 * HEAD_RESERVATION_S


def test_a_large_resident_is_not_overtaken_for_ever():
    """(A): other residents' small turns do not keep a large one waiting beyond all measure."""
    stage = Stage(max_hold_s=1e6)
    stage.rest("large", 40)
    running = [stage.enter(f"r{number}", 10) for number in range(4)]
    large = stage.arrive("large", 46)
    for _number in range(200):
        stage.wait(2)
        oldest = running.pop(0)
        stage.finish(oldest)
        running.append(stage.enter(oldest.waiting.turn.session.session, 10))
        if large.id in stage.placed:
            break

    assert large.id in stage.placed


def test_who_waits_for_a_backend_that_went_down_goes_elsewhere():
    """Its session's other turn was cut there; the home is gone, and another backend has room."""
    stage = Stage("a", "b")
    stage.rest("one", 20)
    home = stage.session("one").home
    other = "b" if home == "a" else "a"
    running = stage.enter("one", 80)
    side = stage.arrive("one", 81)
    assert stage.pump() == []

    stage.gate.see_restart(home, stage.now + 0.1)  # what a backend that goes down is told
    stage.wait(1)
    stage.abort(running)

    assert stage.pump(other) == ["one"]
    assert stage.placed[side.id].backend == other


def test_the_heads_of_finished_sessions_do_not_keep_a_newcomer_out():
    """Nobody runs, every lease is over: what they shared goes with them."""
    stage = Stage()
    for number in range(3):
        stage.rest(f"s{number}", 20, head=7, head_blocks=15)
    stage.wait(1_000)
    large = stage.arrive("large", 90, head=8, head_blocks=10)

    stage.pump()
    stage.wait(600)
    stage.pump()

    assert large.id in stage.placed


def test_heads_that_only_idle_sessions_use_do_not_stop_a_running_one():
    """(A) is about what runs."""
    stage = Stage()
    stage.rest("other", 35, head=7, head_blocks=30)
    stage.rest("mine", 40, head=8, head_blocks=1)
    stage.wait(1_000)
    stage.enter("small", 10)

    assert stage.ask("mine", 60, head=8, head_blocks=1) is not None


def test_cold_prompts_that_have_waited_long_do_not_start_all_at_once():
    """L31: the prefill gate lets the oldest through, not everybody."""
    stage = Stage(blocks=1_000, batch=8_192)
    first = stage.ask("first", 60)
    waiting = [stage.arrive(f"cold {number}", 60) for number in range(5)]
    started = []
    for _ in range(60):
        stage.wait(1)
        started += stage.pump()

    assert first is not None
    assert len(waiting) == 5
    assert len(started) <= 1


def test_answers_that_come_in_one_piece_do_not_shut_the_prefill_gate():
    """No harm: a request that is not streamed tells no first token; forty small ones all start within seconds."""
    stage = Stage(blocks=400, batch=8_192)
    waiting = [stage.arrive(f"prompt:{number}", 1, chain=(number,)) for number in range(40)]
    for _ in range(25):
        stage.pump()
        stage.wait(1)
    stage.pump()

    assert len([entry for entry in waiting if entry.id in stage.placed]) == 40


def test_a_turn_goes_only_where_it_may():
    """Its session moved while it waited, to a backend that cannot serve it."""
    stage = Stage("a", "b")
    stage.rest("one", 40, candidates=("a",))
    stage.enter("busy", 45, candidates=("a",))
    bound = stage.arrive("one", 60, candidates=("a",))
    assert stage.pump() == []
    moved = stage.enter("one", 30, candidates=("b",))
    stage.pump()

    assert moved.backend == "b"
    assert bound.id not in stage.placed or stage.placed[bound.id].backend == "a"


def test_a_batch_turn_that_waits_keeps_no_place():
    """Nobody runs: the newcomer gets the room, and the batch comes after it."""
    stage = Stage()
    stage.rest("one", 60)
    batch = stage.arrive("one", 61, is_batch=True)
    new = stage.arrive("new", 60)
    stage.pump()
    stage.wait(600)
    stage.pump()

    assert new.id in stage.placed or batch.id in stage.placed


def test_two_sessions_that_want_each_others_place_do_not_wait_for_ever():
    """Both may go only where the other one rests, and nobody runs."""
    stage = Stage("a", "b")
    stage.rest("one", 60, candidates=("a",))
    stage.rest("two", 60, candidates=("b",))
    waiting = [stage.arrive("one", 61, candidates=("b",)), stage.arrive("two", 61, candidates=("a",))]
    stage.pump()
    stage.wait(600)
    stage.pump()

    assert any(entry.id in stage.placed for entry in waiting)
