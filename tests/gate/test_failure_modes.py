"""Engines that lie, sleep, forget or are full of others, and what becomes of agents meanwhile."""

import pytest

from proxy.core.turns import StopReason
from proxy.engines import parse_page
from proxy.gate.reporting import EngineChange, EngineWatch
from proxy.state.sessions import Residency
from tests.gate.stage import Stage
from tests.gate.test_reporting import report_of


def page(*, blocks=100, start=1_000.0, usage="0.0", preemptions="0", model="m"):
    """An engine's page of which every number can be wrong."""
    return (
        f'vllm:cache_config_info{{engine="0",block_size="1000",num_gpu_blocks="{blocks + 1}"}} 1.0\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {usage}\n'
        f'vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0\n'
        f'vllm:num_preemptions_total{{engine="0",model_name="{model}"}} {preemptions}\n'
        f"process_start_time_seconds {start}\n"
    )


class Watched(Stage):
    """A stage whose engine is known by its pages alone."""

    def __init__(self, *names, **settings):
        super().__init__(*names, blocks=0, **settings)
        self.watch = EngineWatch(self.gate)

    def scrape(self, name="a", **numbers):
        """A second later, a page comes."""
        self.now += 1
        return self.watch.take(name, parse_page(page(**numbers)), self.now)


@pytest.mark.parametrize("usage", ["NaN", "+Inf", "-0.5", "57.0", "", "many"])
def test_a_usage_that_makes_no_sense_says_nothing_of_others(usage):
    """Neither free nor full: the books alone decide, and what was known of others stays."""
    stage = Watched()
    stage.scrape(usage="0.3")
    for _ in range(20):
        stage.scrape(usage=usage)

    assert stage.ledger().foreign_blocks == pytest.approx(30)
    assert stage.ask("fits", 40) is not None
    assert stage.ask("does not", 40) is None


def test_an_engine_that_always_says_full_is_slow_and_never_shut():
    """One session after the other, since nothing of ours runs there between two."""
    stage = Watched()
    for number in range(5):
        stage.scrape(usage="1.0")
        stage.finish(stage.enter(f"s{number}", 30), stop=StopReason.END_TURN)
        stage.wait(400, reports=False)


@pytest.mark.parametrize("preemptions", ["NaN", "-5", "1e300"])
def test_a_counter_that_makes_no_sense_moves_nothing(preemptions):
    """Not a preemption, not a restart."""
    stage = Watched()
    stage.scrape(preemptions="10")
    before = stage.room().limit.theta
    changes = [stage.scrape(preemptions=preemptions) for _ in range(5)]

    assert changes == [None] * 5
    assert stage.room().limit.theta == before


def test_a_counter_that_runs_away_lowers_the_limit_to_a_half_and_no_further():
    """A new preemption with each report, for an hour."""
    stage = Watched()
    for second in range(3_600):
        stage.scrape(preemptions=str(second))

    assert stage.room().limit.theta == 0.5
    assert stage.ask("one", 40) is not None


def test_several_engines_that_answer_in_turn_do_not_empty_the_ledger_again_and_again():
    """L57: pages of two processes, of different sizes; the smaller one counts, and agents keep their places."""
    stage = Watched()
    for _ in range(3):
        stage.scrape(blocks=100, start=1_000.0)
        stage.scrape(blocks=200, start=2_000.0)
    stage.rest("one", 40)
    for _ in range(10):
        stage.scrape(blocks=100, start=1_000.0)
        stage.scrape(blocks=200, start=2_000.0)

    assert stage.room().capacity.total_blocks == 100
    assert stage.ask("one", 41).admission == "resident"
    assert stage.gate.counters["restarts"] == 1


def test_another_model_on_the_page_is_another_engine():
    """A new process under the old address: its size counts, and nobody is believed cached there."""
    stage = Watched()
    stage.scrape(model="old")
    stage.rest("one", 40)

    assert stage.scrape(model="new", blocks=60, start=2_000.0) is EngineChange.RESTARTED
    assert stage.room().capacity.total_blocks == 60
    assert stage.ask("one", 41).expected_tokens == 0


def test_a_sleeping_engine_gets_nobody_and_the_other_one_does():
    """L63: residents too wait for its waking, or go elsewhere once they are out; then all begin cold, and slowly."""
    stage = Stage("a", "b", batch=8_192)
    stage.rest("one", 10, candidates=("a",))
    watch = EngineWatch(stage.gate)
    watch.take("a", [report_of()], stage.now)
    stage.wait(1)

    assert watch.take("a", [report_of(is_asleep=True)], stage.now) is EngineChange.ASLEEP
    assert stage.ask("one", 11).backend == "b"
    only = stage.arrive("two", 10, candidates=("a",))
    assert stage.pump() == []
    for _ in range(100):
        stage.wait(1, reports=False)
        assert watch.take("a", [report_of(is_asleep=True)], stage.now) is None
    assert stage.pump() == []

    assert watch.take("a", [report_of(is_asleep=False)], stage.now) is EngineChange.AWAKE
    assert stage.pump() == ["two"]
    assert stage.room("a").restarted_at == stage.now
    assert only.id in stage.placed


def test_a_sleeping_engine_that_is_not_heard_of_any_more_is_tried():
    """Nothing is shut on an old word."""
    stage = Stage()
    watch = EngineWatch(stage.gate)
    watch.take("a", [report_of(is_asleep=True)], stage.now)
    assert stage.ask("one", 10) is None

    stage.wait(31, reports=False)

    assert stage.pump() == ["one"]


def test_the_first_minute_after_a_restart_of_the_proxy():
    """The engine is full of others at first; twenty agents come back one after the other as their warm prefixes allow.

    Nothing is known of what lies idle there, so none is let in beyond what fits: who comes late finds a place later.
    """
    stage = Stage(batch=8_192)
    stage.now += 1
    stage.report(usage=0.9)
    waiting = [stage.arrive(f"s{number}", 8) for number in range(20)]
    most = 0.0
    for second in range(60):
        stage.pump()
        for placement in list(stage.placed.values()):
            if placement.id in stage.ledger().holds and stage.now > placement.placed_at:
                stage.gate.first_token(placement, stage.now)
                if stage.now - placement.placed_at >= 5:
                    stage.finish(placement, cached=7_000)
        stage.wait(1, reports=False)
        stage.report(usage=0.6 if second < 10 else 0.0)
        most = max(most, stage.used())
        if second == 1:
            assert len(stage.placed) <= 1  # it is full of others; only one is tried

    inside = sum(entry.id in stage.placed for entry in waiting)
    assert 8 <= inside <= 20
    assert most <= 97 + 1
    assert stage.room().limit.theta >= 0.97


def test_others_on_the_engine_leave_us_what_they_do_not_use():
    """Another proxy with three fifths of it, after a restart of ours: its share is known with the first report."""
    stage = Stage()
    stage.now += 1
    stage.report(usage=0.6)

    assert stage.ask("one", 20) is not None
    assert stage.ask("two", 20) is None


def test_a_reset_of_the_prefix_cache_costs_a_little_for_a_while():
    """Six agents come back cold: the limit falls by a step in ten seconds, nobody loses a place, and it grows again.

    Not taken for a restart, however many misses come at once: an engine that is fuller than believed looks the same,
    and forgetting its sessions would let in more instead of less.
    """
    stage = Stage()
    for number in range(6):
        stage.rest(f"s{number}", 10)
    stage.wait(5)
    for number in range(6):
        back = stage.enter(f"s{number}", 10.1)
        assert back.admission == "resident"
        stage.finish(back, cached=0)
        stage.wait(3)
    lowest = stage.room().limit.theta

    assert 0.97 * 0.95**3 < lowest < 0.97
    assert stage.room().ghost_misses == 6
    for number in range(6):
        back = stage.enter(f"s{number}", 10.2)
        stage.finish(back, cached=10_000)
    assert stage.room().ghost_misses == 6
    stage.arrive("large", 95)
    stage.enter("s0", 10.3)
    for _ in range(600):
        stage.wait(1)
    assert stage.room().limit.theta >= 1.0


def test_one_miss_among_many_hits_does_not_keep_the_limit_low():
    """A busy fleet has one in a minute for reasons of its clients; that must not hold it at its floor for ever."""
    stage = Stage(target_wait_s=1e9)
    for _ in range(40):
        stage.rest("one", 10)
        stage.finish(stage.enter("one", 10), cached=0)
        stage.wait(11)
    assert stage.room().limit.theta == pytest.approx(0.4, abs=0.01)
    running = stage.enter("running", 5)
    stage.arrive("large", 95)

    for minute in range(40):
        for turn in range(120):
            stage.finish(stage.enter("one", 10), cached=0 if turn == 0 else 10_000)
            stage.wait(0.5)
        assert stage.gate.queue, f"somebody waits in minute {minute}"
    assert stage.room().limit.theta > 0.75
    stage.finish(running)


@pytest.mark.parametrize("is_resident", [True, False])
def test_what_no_engine_can_hold_goes_to_it_at_once(is_resident):
    """Its agent has to see the engine's own error to make its context shorter; it takes nobody's place for that."""
    stage = Stage()
    if is_resident:
        stage.rest("grown", 60)
        stage.wait(400)
    busy = [stage.enter(f"busy {number}", 15) for number in range(3)]

    grown = stage.ask("grown", 101 if is_resident else 210)

    assert grown is not None
    stage.abort(grown)
    assert stage.session("grown").asides == 0
    for placement in busy:
        stage.finish(placement)
    assert stage.ledger().pinned_blocks == 0
    assert stage.room().control_blocks == 0


def test_what_may_only_seem_too_large_waits_to_go_alone():
    """Bytes are a guess: half of it would fit."""
    stage = Stage()
    busy = stage.enter("busy", 15)
    assert stage.ask("guess", 150) is None

    stage.finish(busy)

    assert stage.pump() == ["guess"]


def test_one_key_does_not_hold_the_whole_engine_while_another_one_waits():
    """Six agents of one key that never pause, and one of another: within two minutes it is in, and half of them stay.

    Six agents' slices would last for an hour and a half. The one whose time is over is the last that the engine would
    evict, so others follow before its blocks are the first.
    """
    stage = Stage()
    for number in range(6):
        stage.rest(f"greedy {number}", 12, credential="greedy")
    modest = stage.arrive("modest", 25, credential="modest")
    while modest.id not in stage.placed and stage.now < 1_000 + 3_600:
        for number in range(6):
            stage.wait(1)
            again = stage.ask(f"greedy {number}", 12, credential="greedy")
            if again is not None:
                stage.gate.first_token(again, stage.now)
                stage.finish(again)
                stage.pump()

    assert modest.id in stage.placed
    assert stage.now - modest.arrived_at <= 120
    assert 1 <= stage.gate.counters["segments_ended"] <= 3
    assert [stage.session(f"greedy {n}", credential="greedy").residency for n in range(6)].count(Residency.IN) >= 3


def test_a_key_within_its_share_keeps_its_slices():
    """Half of the engine each, and more of the one want in: nobody is sent away before its time."""
    stage = Stage()
    for number in range(4):
        stage.rest(f"one {number}", 10, credential="one")
        stage.rest(f"two {number}", 10, credential="two")
    stage.arrive("one more", 25, credential="one")
    for _ in range(60):
        for number in range(4):
            for key in ("one", "two"):
                stage.wait(0.5)
                stage.finish(stage.enter(f"{key} {number}", 10, credential=key))

    assert stage.gate.counters["segments_ended"] == 0
