"""Several engines behind one address: a room each where a rank can be asked for, else one pool."""

import random
from dataclasses import replace

import pytest

from proxy.core.reports import CapacityFacts, EngineCounters, EngineKind
from proxy.core.turns import TurnEnd
from proxy.gate import Placement
from proxy.gate.reporting import EngineChange, EngineWatch
from proxy.gate.settings import EngineSettings
from proxy.state.ranks import RankTable
from proxy.state.sessions import Residency
from proxy.state.wait_queue import Waiting
from tests.gate.stage import Stage
from tests.gate.test_reporting import FACTS, report_of

LABELS = ("0", "1", "2", "3")


class Ranked:
    """A gate before one address, and who reads the reports of the engines behind it."""

    def __init__(self, **settings):
        self.stage = Stage(blocks=0)
        self.ranks = RankTable()
        self.watch = EngineWatch(self.stage.gate, self.ranks, {"a": EngineSettings(**settings)})

    def report(self, *usages, labels=LABELS, **more):
        """A page with one engine a usage."""
        self.stage.now += 1.0
        reports = [report_of(rank=rank, usage=usage, **more) for rank, usage in zip(labels, usages, strict=False)]
        return self.watch.take("a", reports, self.stage.now)

    @property
    def rooms(self):
        """The names of the rooms."""
        return self.ranks.rooms_of("a")

    @property
    def pool(self):
        """The room of turns that may run on any rank."""
        return self.ranks.pool_of("a")

    def blocks(self):
        """The size of each room."""
        capacities = [self.stage.room(name).capacity for name in self.rooms]
        return [capacity and capacity.total_blocks for capacity in capacities]

    def enter(self, session, blocks, rank=None):
        """A turn that starts at once, at a rank if one is given."""
        names = self.rooms if rank is None else (self.rooms[rank],)
        return self.stage.enter(session, blocks, candidates=names)


def test_each_engine_gets_a_room_of_its_own():
    """With its own size and its own usage; labels that count over several nodes are taken in their order."""
    ranked = Ranked()
    ranked.report(0.2, 0.4, labels=("4", "5"))

    assert ranked.rooms == ("a", "a#1")
    assert ranked.blocks() == [100, 100]
    assert [ranked.stage.ledger(name).foreign_blocks for name in ranked.rooms] == [20.0, 40.0]


def test_sessions_of_one_address_live_on_one_rank_each():
    """Two that do not fit on one engine together fit on two; each comes home."""
    ranked = Ranked()
    ranked.report(0.0, 0.0)
    first, second = ranked.enter("one", 60), ranked.enter("two", 60)
    assert {first.backend, second.backend} == {"a", "a#1"}

    for placement in (first, second):
        ranked.stage.finish(placement)
    again = ranked.enter("one", 61), ranked.enter("two", 61)
    assert [placement.backend for placement in again] == [first.backend, second.backend]
    assert {placement.admission for placement in again} == {"resident"}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"data_parallel": "sum"}, {}),
        ({"data_parallel": "auto"}, {"kind": EngineKind.SGLANG}),
    ],
)
def test_where_no_rank_can_be_asked_for_they_are_one_pool(settings, more):
    """A little smaller than their sum: a request is held by one of them, and not by all."""
    ranked = Ranked(**settings)
    kind = more.get("kind", EngineKind.VLLM)
    reports = [replace(report_of(rank=rank), kind=kind) for rank in ("0", "1")]
    ranked.watch.take("a", reports, 1.0)

    assert ranked.rooms == ("a",)
    assert ranked.blocks() == [176]


def test_other_engines_have_ranks_where_the_configuration_says_so():
    """SGLang takes the header by version and route."""
    ranked = Ranked(data_parallel="ranks")
    ranked.watch.take("a", [replace(report_of(rank=rank), kind=EngineKind.SGLANG) for rank in ("0", "1")], 1.0)

    assert ranked.blocks() == [100, 100]


def test_turns_that_no_rank_can_be_asked_for_are_booked_on_all_together():
    """On none of them is anything believed of such a session; what it holds while it runs, their usage shows."""
    ranked = Ranked()
    ranked.report(0.0, 0.0)
    stage = ranked.stage
    assert stage.room(ranked.pool).capacity.total_blocks == 176
    wide = stage.enter("anywhere", 120, candidates=(ranked.pool,))
    assert [stage.used(name) for name in ranked.rooms] == [0, 0]

    for _ in range(20):
        ranked.report(0.6, 0.6)
    assert [stage.ledger(name).foreign_blocks for name in ranked.rooms] == [pytest.approx(60, rel=0.01)] * 2
    stage.finish(wide)
    assert stage.session("anywhere").home == ranked.pool
    assert [len(stage.ledger(name).idle) for name in (*ranked.rooms, ranked.pool)] == [0, 0, 1]


def test_only_ranks_are_one_cache_each():
    """What may run on any of them meets another one each time, and so do turns on one pool of all."""
    ranked, pooled = Ranked(), Ranked(data_parallel="sum")
    for one in (ranked, pooled):
        one.report(0.0, 0.0)

    def is_one(stage, name):
        return stage.room(name).prefixes.is_one_engine

    assert [is_one(ranked.stage, name) for name in (*ranked.rooms, ranked.pool)] == [True, True, False]
    assert not is_one(pooled.stage, "a")


def test_what_runs_on_ranks_is_foreign_to_those_that_may_run_on_any():
    """Both fill the same memory, so neither is let in where the other is."""
    ranked = Ranked()
    ranked.report(0.0, 0.0)
    stage = ranked.stage
    for rank in (0, 1):
        ranked.enter(f"s{rank}", 60, rank=rank)
    for _ in range(20):
        ranked.report(0.6, 0.6)

    assert stage.ledger(ranked.pool).foreign_blocks == pytest.approx(0.6 * 176, rel=0.01)
    stage.enter("small", 5, candidates=(ranked.pool,))
    assert stage.ask("large", 100, candidates=(ranked.pool,)) is None


def test_they_share_a_configured_size_and_lose_what_an_engine_loses():
    """As one pool has it; a restart makes them cold too, and so does a server that shows one engine only."""
    ranked = Ranked(kv_cache_tokens=64_000)
    ranked.report(0.0, 0.0, capacity=CapacityFacts())
    assert ranked.stage.room(ranked.pool).capacity.total_tokens == 64_000 * 88 // 100

    for more in ({"start": 2_000.0}, {}):
        ranked.stage.rest("anywhere", 20, candidates=(ranked.pool,))
        assert ranked.stage.session("anywhere").residency is Residency.IN
        ranked.report(*([0.0, 0.0] if more else [0.0]), capacity=CapacityFacts(), **more)
        assert ranked.stage.session("anywhere").residency is Residency.OUT


def test_one_engine_is_never_a_rank():
    """Whatever is configured: the header would be refused by a server that has one only and numbers it otherwise."""
    ranked = Ranked(data_parallel="ranks")
    ranked.report(0.0, labels=("3",))

    assert ranked.rooms == ("a",)
    assert ranked.ranks.place_of("a") == ("a", None)


def test_processes_that_answer_in_turn_have_no_ranks_to_ask_for():
    """Each has ranks of its own behind the one address (L57)."""
    ranked = Ranked()

    def page(tokens):
        ranked.stage.now += 1.0
        counters = EngineCounters(generation_tokens=tokens)
        reports = [replace(report_of(rank=rank, start=None), counters=counters) for rank in ("0", "1")]
        ranked.watch.take("a", reports, ranked.stage.now)
        return len(ranked.rooms)

    assert page(5_000) == 2
    assert 1 in {page(tokens) for tokens in (100, 5_001, 101, 5_002, 102)}


def test_a_rank_that_does_not_tell_its_size_is_no_larger_than_the_others():
    """Of unknown size it would be let fill up, by everybody."""
    ranked = Ranked()
    small = replace(FACTS, num_gpu_blocks=51)
    reports = [
        report_of(rank=rank, capacity=one) for rank, one in zip("012", (FACTS, CapacityFacts(), small), strict=True)
    ]
    ranked.watch.take("a", reports, 1.0)

    assert ranked.blocks() == [100, 50, 50]


def test_a_configured_size_is_shared_by_the_ranks():
    """It is what lies behind the address; a page that tells sizes counts."""
    ranked = Ranked(kv_cache_tokens=64_000)
    ranked.report(0.0, 0.0, capacity=CapacityFacts())
    assert ranked.blocks() == [2_000, 2_000]  # of 16 tokens

    ranked.report(0.0, 0.0)
    assert ranked.blocks() == [100, 100]

    ranked.report(0.0, capacity=CapacityFacts())
    assert ranked.blocks() == [4_000]


def test_a_restart_of_all_is_told_once():
    """They are one process; each loses its residents."""
    ranked = Ranked()
    ranked.report(0.0, 0.0)
    for name in ("one", "two"):
        ranked.stage.finish(ranked.enter(name, 60))

    assert ranked.report(0.0, 0.0, start=2_000.0) is EngineChange.RESTARTED
    assert [ranked.stage.used(name) for name in ranked.rooms] == [0, 0]


def test_when_the_first_report_shows_ranks_what_runs_goes_on():
    """It was booked on the address as a whole; its end gives everything back, and nobody believes its prefix there."""
    stage_first = Ranked(kv_cache_tokens=200_000)
    stage = stage_first.stage
    stage.size("a", 200)
    running = stage.enter("one", 60)
    stage.rest("two", 60)
    stage_first.report(0.3, 0.3)

    assert stage.session("two").residency is Residency.OUT
    assert stage.ledger("a").pinned_blocks > 0
    stage.finish(running)
    assert [stage.used(name) for name in stage_first.rooms] == [0, pytest.approx(30)]  # the second: foreign
    assert stage.session("one").residency is not Residency.IN


def test_a_rank_that_is_gone_is_left():
    """Its sessions go where there is room, its turns in flight end, and what they held is nobody's."""
    ranked = Ranked()
    ranked.report(0.0, 0.0)
    stage = ranked.stage
    gone = ranked.enter("gone", 60, rank=1)
    stage.finish(ranked.enter("idle", 20, rank=1))
    ranked.report(0.0)

    assert ranked.rooms == ("a",)
    assert not ranked.ranks.is_current("a#1")
    assert stage.session("idle").residency is Residency.OUT
    stage.finish(gone)
    assert stage.used("a#1") == 0
    again = ranked.enter("idle", 21)
    assert (again.backend, again.admission) == ("a", "returning")


@pytest.mark.parametrize("seed", range(4))
def test_however_ranks_come_and_go_nothing_stays_booked(seed):
    """Arrivals, ends and reports of one to four engines in any order; then the end."""
    rng, ranked = random.Random(seed), Ranked(kv_cache_tokens=100_000)
    stage, placed = ranked.stage, 0
    waiting: dict[int, Waiting] = {}
    running: list[Placement] = []
    ranked.report(0.0)
    for _ in range(3_000):
        chance = rng.random()
        if chance < 0.45:
            head = rng.choice([0, 7])
            one = stage.arrive(
                f"s{rng.randrange(12)}",
                rng.choice([2, 15, 40]),
                head=head,
                head_blocks=head and 2,
                candidates=ranked.rooms if rng.random() < 0.7 else (ranked.pool,),
            )
            waiting[one.id] = one
        elif chance < 0.9 and running:
            placement = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.3:
                stage.abort(placement)
            else:
                stage.gate.first_token(placement, stage.now)
                stage.finish(placement, cached=rng.choice([None, 0, placement.expected_tokens]))
        elif chance < 0.95 and waiting:
            stage.gate.give_up(waiting.pop(rng.choice(list(waiting))), stage.now, keeps_ticket=rng.random() < 0.5)
        else:
            ranked.report(*[rng.choice([0.0, 0.2])] * rng.randrange(1, 5))
            for one in waiting.values():
                stage.gate.reroute(one, ranked.rooms if one.id % 2 else (ranked.pool,))
        stage.now += rng.random()
        open_rooms = ranked.ranks.current_rooms_of("a")
        for placement in stage.gate.pump(stage.now, open_rooms):
            assert placement.backend in open_rooms
            del waiting[placement.waiting.id]
            running.append(placement)
            placed += 1
    assert placed > 500

    for one in waiting.values():
        stage.gate.give_up(one, stage.now, keeps_ticket=False)
    for placement in running:
        stage.gate.end(placement, TurnEnd(), stage.now)
    for name in stage.gate.rooms:
        stage.gate.see_restart(name, stage.now)
    rooms = stage.gate.rooms
    assert len(rooms) == 5
    assert {room.inflight for room in rooms.values()} == {0}
    assert all(not room.ledger.holds and room.ledger.pinned_blocks == 0 for room in rooms.values())
    assert all(room.ledger.idle_blocks == room.ledger.head_blocks == 0 for room in rooms.values())
    assert all(not one.is_busy and not one.waiting for one in stage.gate.sessions._sessions.values())
