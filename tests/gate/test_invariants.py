"""Any order of arrivals, ends, reports and accidents: the books are right, (A) and (B) hold, nobody is lost."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.core.turns import Rank, StopReason
from proxy.state.sessions import Residency
from tests.gate.stage import Stage

SESSIONS = st.sampled_from(["one", "two", "three", "four", "prompt:5"])
AGENTS = st.sampled_from(["", "", "x", "y"])
SIZES = st.sampled_from([0.3, 2.0, 10.0, 30.0, 60.0, 150.0])
HEADS = st.sampled_from([(0, 0.0), (7, 5.0), (8, 8.0)])
BACKENDS = ("a", "b")
WHERE = st.sampled_from([BACKENDS, BACKENDS, ("a",), ("b",)])


class AnyTraffic(RuleBasedStateMachine):
    """A gate before two engines, and a simple account of what it was told and what it said."""

    def __init__(self):
        super().__init__()
        self.waiting = {}
        self.running = {}
        self.gone = set()
        self.ended = []

    @initialize(
        batch=st.sampled_from([8_192, 10**6]), enforcing=st.sampled_from([True, True, True, False]),
        beta=st.sampled_from([0.0, 2.7]), known=st.sampled_from([True, True, True, False]),
    )  # fmt: skip
    def begin(self, batch, enforcing, beta, known):
        """Engines of a hundred blocks, or of unknown size."""
        self.batch, self.beta = batch, beta
        self.stage = Stage(
            *BACKENDS, blocks=100 if known else 0, batch=batch, beta=beta, is_enforcing=enforcing, target_wait_s=100.0
        )
        self.is_enforcing, self.is_known = enforcing, known

    @rule(
        name=SESSIONS, agent=AGENTS, blocks=SIZES, head=HEADS, extends=st.booleans(), credential=st.sampled_from("pq"),
        only=WHERE, limit=st.sampled_from([None, 50]),
        twin=st.sampled_from([0, 0, 5]), is_batch=st.sampled_from([False, False, False, True]),
        one_message=st.booleans(),
    )  # fmt: skip
    def arrive(  # noqa: PLR0917 - hypothesis passes them by name
        self, name, agent, blocks, head, extends, credential, only, limit, twin, is_batch, one_message
    ):
        """A request comes, and whoever may start does."""
        more = {"chain": (hash((name, blocks)),)} if one_message else {}
        waiting = self.stage.arrive(
            name, blocks + head[1], agent=agent, head=head[0], head_blocks=head[1], extends=extends, twin=twin,
            credential=credential, candidates=only, output_limit_tokens=limit, is_batch=is_batch, **more,
        )  # fmt: skip
        if waiting.replaced is not None:
            assert self.waiting.pop(waiting.replaced.id) is waiting.replaced
            self.gone.add(waiting.replaced.id)
        self.waiting[waiting.id] = waiting
        self.pump(only)

    def pump(self, names):
        """Start who may start, and look whether they may."""
        stage = self.stage
        before = {name: len(stage.ledger(name).holds) for name in BACKENDS}
        started = stage.gate.pump(stage.now, names)
        for placement in started:
            waiting = self.waiting.pop(placement.waiting.id)
            assert placement.backend in names
            assert placement.backend in waiting.candidates
            assert waiting.id not in self.running
            assert waiting.id not in self.gone
            self.running[waiting.id] = placement
        if self.is_enforcing:
            for name in names:
                here = [placement for placement in started if placement.backend == name]
                if here and stage.room(name).capacity is not None and before[name] + len(here) > 1:
                    self.look_at(name, here)

    def look_at(self, name, here):
        """(A) and (B) after the last placement on a backend that had others, with what each may borrow."""
        stage, room, ledger = self.stage, self.stage.room(name), self.stage.ledger(name)
        last = here[-1]
        if last.waiting.rank is Rank.CONTROL:
            return
        share = 1.1 if last.waiting.turn.session.agent else 1.0
        limit = share * room.limit_blocks(stage.now) + 1e-6
        growth = room.growth_blocks(len(ledger.holds))
        assert ledger.pinned_blocks + ledger.head_blocks + ledger.foreign_blocks + growth <= limit
        assert ledger.used_blocks + growth <= limit

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(), what=st.sampled_from(["first", "grow", "grow", "finish", "finish", "abort"]),
        stop=st.sampled_from(StopReason), cached=st.sampled_from([None, 0, "all"]), pumps=st.booleans(),
    )  # fmt: skip
    def go_on(self, data, what, stop, cached, pumps):
        """A running turn's first token, growth or end."""
        stage = self.stage
        number = data.draw(st.sampled_from(sorted(self.running)))
        placement = self.running[number]
        if what == "first":
            stage.gate.first_token(placement, stage.now)
        elif what == "grow":
            stage.gate.first_token(placement, stage.now)
            stage.gate.generated(placement, placement.generated_tokens + 700)
        else:
            self.ended.append(self.running.pop(number))
            self.gone.add(number)
            if what == "abort":
                stage.abort(placement)
            else:
                seen = placement.waiting.prompt_tokens if cached == "all" else cached
                stage.finish(placement, cached=seen, stop=stop, completion=placement.generated_tokens + 100)
        if pumps:
            self.pump((placement.backend,))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), keeps_ticket=st.booleans())
    def give_up(self, data, keeps_ticket):
        """Somebody leaves, or is refused."""
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        waiting = self.waiting.pop(number)
        self.gone.add(number)
        assert self.stage.gate.give_up(waiting, self.stage.now, keeps_ticket=keeps_ticket)
        assert not self.stage.gate.give_up(waiting, self.stage.now, keeps_ticket=keeps_ticket)

    @rule(seconds=st.sampled_from([0.5, 5.0, 61.0, 400.0]), reports=st.booleans())
    def wait(self, seconds, reports):
        """Time passes."""
        self.stage.wait(seconds, reports=reports)
        self.pump(BACKENDS)

    @rule(name=st.sampled_from(BACKENDS), what=st.sampled_from(["usage", "preempted", "short", "restart", "size"]))
    def happens(self, name, what):
        """Something happens to an engine."""
        stage = self.stage
        if what == "usage":
            stage.report(name, usage=0.3)
        elif what == "restart":
            stage.gate.see_restart(name, stage.now)
        elif what == "size":
            known = stage.room(name).capacity
            stage.size(name, 80 if known and known.total_blocks == 100 else 100, beta=self.beta, batch=self.batch)
        else:
            stage.report(name, preemptions=what == "preempted", is_short=what == "short")
        self.pump((name,))

    @invariant()
    def nobody_is_lost(self):
        """Each request waits, runs or is gone, and the gate sees it the same way."""
        if not hasattr(self, "stage"):
            return
        gate = self.stage.gate
        assert {waiting.id for waiting in gate.queue} == set(self.waiting)
        inflight = Counter(placement.waiting.session.key for placement in self.running.values())
        waiting = Counter(entry.session.key for entry in self.waiting.values())
        for key in {*inflight, *waiting}:
            session = gate.sessions.get(key)
            assert session is not None
            assert (inflight[key], waiting[key]) == (session.inflight + session.asides, session.waiting)
        by_backend = Counter(placement.backend for placement in self.running.values())
        assert all(by_backend[name] == gate.rooms[name].inflight for name in BACKENDS)

    @invariant()
    def the_books_are_right(self):
        """What is pinned is what runs; nothing is negative; idle sessions are at home and not in flight twice."""
        if not hasattr(self, "stage"):
            return
        for name in BACKENDS:
            ledger = self.stage.ledger(name)
            assert set(ledger.holds) <= {number for number, p in self.running.items() if p.backend == name}
            assert ledger.pinned_blocks == pytest.approx(sum(h.blocks for h in ledger.holds.values()), abs=1e-6)
            idle = list(ledger.longest_idle_first())
            assert ledger.idle_blocks == pytest.approx(sum(blocks for _, blocks in idle), abs=1e-6)
            assert min(ledger.pinned_blocks, ledger.idle_blocks, ledger.head_blocks, ledger.foreign_blocks) >= 0
            assert ledger.uncached_tokens == sum(hold.uncached_tokens for hold in ledger.holds.values())
            residents = sum(session.residency is Residency.IN for session, _ in idle)
            assert ledger.resident_sessions == len(ledger.holds) + residents
            kept = Counter(s.key.credential for s, _ in idle if s.residency is Residency.IN)
            assert kept == {key: number for key, (number, _) in ledger.idle.kept_by.items()}
            for key, (_, blocks) in ledger.idle.kept_by.items():
                mine = (held for s, held in idle if s.residency is Residency.IN and s.key.credential == key)
                assert blocks == pytest.approx(sum(mine), abs=1e-6)
            if not ledger.holds and not idle:
                assert (0, 0, 0) == (ledger.pinned_blocks, ledger.idle_blocks, ledger.head_blocks)
            assert self.stage.room(name).control_blocks >= -1e-6

    @invariant()
    def residents_lie_where_they_live(self):
        """Who is in and not running has blocks at home, and nobody's idle blocks lie anywhere else."""
        if not hasattr(self, "stage"):
            return
        for name in BACKENDS:
            for session, _ in self.stage.ledger(name).longest_idle_first():
                assert session.home == name
        for key in {placement.waiting.session.key for placement in self.ended}:
            session = self.stage.gate.sessions.get(key)
            if session is not None and not session.inflight:
                assert not session.has_blocks, repr(session)
            if session is not None and session.residency is Residency.IN and not session.inflight:
                assert session.home is not None
                assert self.stage.ledger(session.home).idle_of(session) > 0, repr(session)

    def teardown(self):
        """Everything ends, time passes, and whoever waits is served; at last nothing is left."""
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        while self.waiting or self.running:
            for number, placement in list(self.running.items()):
                del self.running[number]
                stage.abort(placement)
            for _ in range(40):
                stage.wait(10)
                for name in BACKENDS:
                    stage.report(name, usage=0.0)
            before = len(self.waiting)
            self.pump(BACKENDS)
            assert len(self.waiting) < before or not before, (
                f"{list(self.waiting.values())} wait and nothing runs: {stage.gate.rooms}"
            )
        for name in BACKENDS:
            stage.gate.see_restart(name, stage.now)
            ledger = stage.ledger(name)
            assert (0, 0, 0) == (ledger.pinned_blocks, ledger.idle_blocks, ledger.head_blocks)
            assert stage.room(name).control_blocks == pytest.approx(0, abs=1e-6)
        assert len(stage.gate.queue) == stage.gate.queue.body_bytes == 0


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
