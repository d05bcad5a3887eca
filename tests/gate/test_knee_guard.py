from dataclasses import replace

import pytest

from proxy.core.reports import CapacityFacts, EngineCounters, EngineKind, EngineReport
from proxy.gate import Gate, GateSettings
from proxy.gate.reporting import EngineWatch
from proxy.policy.knee import ENOUGH_S, FORGOTTEN_S
from tests.gate.stage import Stage


class Engine:
    """One engine's reports as time passes: it writes so fast with so many running.

    Attributes:
        room: the gate's room before it.
    """

    def __init__(self, **settings):
        gate = Gate(("a",), GateSettings(**{"guards_knee": True, **settings}))
        self.room, self.gate = gate.rooms["a"], gate
        self._watch = EngineWatch(gate)
        self.now = 0.0
        self._generated = 0
        self.report = EngineReport(
            kind=EngineKind.VLLM,
            capacity=CapacityFacts(num_gpu_blocks=101, reserved_blocks=1, block_tokens=1_000),
            kv_usage_ratio=0.0,
            waiting=0,
            process_start_time_s=1_000.0,
            counters=EngineCounters(preemptions=0, generation_tokens=0),
        )

    def run(self, running, tokens_per_s, seconds=ENOUGH_S + 2, unknown=None):
        """So many seconds, a report in each; of which something may be left out."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self._generated += int(tokens_per_s)
            counters = EngineCounters(preemptions=0, generation_tokens=self._generated)
            self.tell(**{"running": running, "counters": counters, **(unknown or {})})

    def tell(self, **facts):
        """One report, on top of what was said before."""
        self.report = replace(self.report, **facts)
        self._watch.take("a", [self.report], self.now)


def test_turns_are_capped_where_more_of_them_are_slower():
    """And allowed again after ten minutes, to see whether that is still so."""
    engine = Engine()
    engine.run(8, 418)
    engine.run(16, 330)
    assert engine.room.knee.cap == 9

    engine.run(9, 410, FORGOTTEN_S)

    assert engine.room.knee.cap is None


def test_it_is_off_by_default():
    """Nothing is learned, so nothing is capped."""
    assert not GateSettings().guards_knee
    engine = Engine(guards_knee=False)
    engine.run(8, 418)
    engine.run(16, 330)

    assert engine.room.knee.cap is None
    assert engine.room.knee.learned.speeds == {}


@pytest.mark.parametrize("unknown", [{"running": None}, {"counters": EngineCounters(preemptions=0)}])
def test_an_engine_that_does_not_say_is_not_capped(unknown):
    """Unknown is no speed of nothing."""
    engine = Engine()
    for running, tokens_per_s in ((8, 418), (16, 330)):
        for _ in range(40):
            engine.run(running, tokens_per_s, seconds=1, unknown=unknown)

    assert engine.room.knee.learned.speeds == {}


def test_a_counter_that_goes_back_is_no_sample():
    """Another process behind the address, or the same one anew: what was learned of the old one is forgotten."""
    engine = Engine()
    engine.run(8, 418)
    before = engine.room.knee.learned.speeds[8]
    engine.now += 1.0
    engine.tell(counters=EngineCounters(preemptions=0, generation_tokens=3))
    assert engine.room.knee.learned.speeds == {8: before}

    engine.now += 1.0
    engine.tell(counters=EngineCounters(preemptions=0, generation_tokens=421))

    assert engine.room.knee.learned.speeds == {}


def test_seconds_of_prefill_are_not_counted():
    """Prompts in flight that take longer than the next report make everybody slow, however many run."""
    stage = Stage(guards_knee=True)
    for _ in range(5):
        stage.now += 1.0
        see(stage.room(), stage.now, 400.0)
    samples = stage.room().knee.learned.speeds[8].samples
    stage.ask("long", 30)
    for _ in range(5):
        stage.now += 1.0
        see(stage.room(), stage.now, 20.0)

    assert stage.room().knee.learned.speeds[8].samples == samples


def see(room, now, tokens_per_s):
    """Eight run, and write so fast; the engine says nothing of prompts."""
    room.knee.see_speed(now, running=8, tokens_per_s=tokens_per_s, computed_tokens_per_s=None, interval_s=1.0)


def capped(cap, **settings):
    """A stage whose engine is known to be slower with more than so many turns."""
    stage = Stage(guards_knee=True, **settings)
    knee = stage.room().knee
    knee.learned = replace(knee.learned, cap=cap)
    return stage


def test_newcomers_and_residents_wait_for_the_cap():
    """Both, though there is room for all of them; the first end lets the next one in."""
    stage = capped(2)
    stage.rest("resident", 5)
    running = [stage.enter(name, 5) for name in ("one", "two")]
    assert stage.ask("new", 5) is None
    assert stage.ask("resident", 6) is None

    stage.finish(running[0])
    assert stage.pump() == ["resident"]
    stage.finish(running[1])

    assert stage.pump() == ["new"]


def test_an_empty_engine_is_never_blocked():
    """Whatever the cap."""
    stage = capped(0)

    assert stage.ask("one", 5) is not None
    assert stage.ask("two", 5) is None


def test_shadow_mode_only_counts():
    """The cap would have held it back."""
    stage = capped(1, is_enforcing=False)
    stage.enter("one", 5)

    placement = stage.ask("two", 5)

    assert placement is not None
    assert placement.would_wait


def test_a_restarted_engine_is_another_engine():
    """It may have come back with other settings."""
    stage = capped(2)
    stage.gate.see_restart("a", stage.now)

    assert stage.room().knee.cap is None
