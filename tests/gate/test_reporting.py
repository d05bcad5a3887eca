from dataclasses import replace

import pytest

from proxy.core.reports import CapacityFacts, EngineCounters, EngineKind, EngineReport
from proxy.engines import parse_page
from proxy.gate import Gate, GateSettings
from proxy.gate.reporting import EngineWatch
from proxy.gate.settings import EngineSettings
from tests.engines.pages import page
from tests.gate.stage import Stage

FACTS = CapacityFacts(num_gpu_blocks=101, reserved_blocks=1, block_tokens=1_000, max_num_batched_tokens=8_192)


def report_of(*, usage=0.0, preemptions=0, waiting=0, start=1_000.0, **more):
    """What one engine says."""
    return EngineReport(
        kind=EngineKind.VLLM,
        capacity=more.pop("capacity", FACTS),
        kv_usage_ratio=usage,
        waiting=waiting,
        counters=EngineCounters(preemptions=preemptions, generation_tokens=100 + preemptions),
        process_start_time_s=start,
        **more,
    )


def watched():
    """A gate before one engine, and who reads its reports."""
    gate = Gate(("a",), GateSettings())
    return gate.rooms["a"], EngineWatch(gate)


def test_the_first_report_tells_the_size():
    """What fits into a batch too: the prefill gate goes by it."""
    room, watch = watched()
    watch.take("a", [report_of()], 1.0)

    assert room.capacity is not None
    assert (100, 1_000) == (room.capacity.total_blocks, room.capacity.block_tokens)
    assert (8_192, 1.0) == (room.batch_tokens, room.report_at)


def test_a_page_without_engines_changes_nothing():
    """Its facts, if there were some, stay."""
    room, watch = watched()
    watch.take("a", [report_of()], 1.0)
    watch.take("a", [], 2.0)

    assert room.report_at == 1.0
    assert room.capacity is not None


def test_labels_that_vanish_are_not_a_size_of_nothing():
    """Unknown is never free, and never nothing either."""
    room, watch = watched()
    watch.take("a", [report_of()], 1.0)
    watch.take("a", [report_of(capacity=CapacityFacts())], 2.0)

    assert room.capacity is not None
    assert room.report_at == 2.0


def test_preemptions_are_counted_between_reports():
    """Not those of the engine's life before us; each new one lowers the limit."""
    room, watch = watched()
    watch.take("a", [report_of(preemptions=1_000)], 1.0)
    before = room.limit.theta
    watch.take("a", [report_of(preemptions=1_000)], 2.0)
    assert room.limit.theta == before

    watch.take("a", [report_of(preemptions=1_001)], 3.0)

    assert room.limit.theta < before


@pytest.mark.parametrize(
    ("more", "cuts"),
    [
        ({"usage": 0.95, "waiting": 3}, True),
        ({"usage": 0.85, "waiting": 3}, False),
        ({"usage": 0.95, "waiting": 3, "waiting_capacity": 0}, False),
        ({"usage": 0.95}, False),
    ],
)
def test_waiting_for_memory_is_waiting_at_a_full_cache(more, cuts):
    """L56: adapters and transfers are waited for as well; those say nothing of memory."""
    room, watch = watched()
    before = room.limit.theta
    for second in range(4):
        watch.take("a", [report_of(**more)], float(second))

    assert (room.limit.theta < before) is cuts


def test_usage_beyond_ours_is_others():
    """Another proxy on the same engine, smoothed."""
    room, watch = watched()
    for second in range(20):
        watch.take("a", [report_of(usage=0.4)], float(second))

    assert room.ledger.foreign_blocks == pytest.approx(40, abs=1)


def test_usage_that_is_ours_is_not_others():
    """What we have booked explains it."""
    stage = Stage()
    watch = EngineWatch(stage.gate)
    stage.enter("one", 40)
    for second in range(20):
        watch.take("a", [report_of(usage=0.41)], stage.now + second)

    assert stage.ledger().foreign_blocks < 2


def test_another_process_has_an_empty_cache():
    """Its start time or its counters tell."""
    stage = Stage(blocks=0)
    watch = EngineWatch(stage.gate)
    watch.take("a", [report_of(start=1_000.0)], stage.now)
    stage.rest("one", 40)
    stage.now += 1
    watch.take("a", [report_of(start=1_000.0)], stage.now)
    assert stage.used() > 0

    stage.now += 1
    watch.take("a", [report_of(start=2_000.0)], stage.now)

    assert stage.used() == 0
    assert stage.gate.counters["restarts"] == 1


def test_a_sleeping_engine_has_an_empty_cache():
    """L63: sleeping drops it."""
    stage = Stage(blocks=0)
    watch = EngineWatch(stage.gate)
    watch.take("a", [report_of()], stage.now)
    stage.rest("one", 40)
    stage.now += 1
    watch.take("a", [report_of(is_asleep=True)], stage.now)

    assert stage.used() == 0


def test_an_engine_that_sleeps_on_has_not_restarted_again():
    """One sleep is one event, however many reports tell of it."""
    stage = Stage(blocks=0)
    watch = EngineWatch(stage.gate)
    for second in range(10):
        watch.take("a", [report_of(is_asleep=True)], stage.now + second)

    assert stage.gate.counters["restarts"] <= 1


def test_another_size_empties_the_ledger_of_residents():
    """Another model behind the same address."""
    stage = Stage(blocks=0)
    watch = EngineWatch(stage.gate)
    watch.take("a", [report_of()], stage.now)
    stage.rest("one", 40)
    running = stage.enter("two", 40)
    watch.take("a", [report_of(capacity=replace(FACTS, num_gpu_blocks=201))], stage.now + 1)

    assert stage.room().capacity.total_blocks == 200
    assert stage.ledger().idle_blocks == 0
    stage.finish(running)
    assert stage.ledger().pinned_blocks == 0


def test_engines_without_ranks_to_ask_for_are_one_pool_of_known_size_or_of_none():
    """Half of a pool is not a pool."""
    gate = Gate(("a",), GateSettings())
    watch = EngineWatch(gate, settings={"a": EngineSettings("sum")})
    watch.take("a", [report_of(rank="0"), report_of(rank="1", capacity=CapacityFacts())], 1.0)
    assert gate.rooms["a"].capacity is None

    watch.take("a", [report_of(rank="0", usage=0.2), report_of(rank="1", usage=0.4)], 2.0)
    capacity = gate.rooms["a"].capacity
    assert capacity is not None
    assert 150 < capacity.total_blocks < 200
    assert gate.rooms["a"].ledger.foreign_blocks == pytest.approx(0.3 * capacity.total_blocks)


@pytest.mark.parametrize(
    "name", ["vllm-0.32-busy", "vllm-0.11", "vllm-0.13-dp2-mtp", "vllm-0.24-hybrid", "vllm-0.32-dp2"]
)
def test_real_pages_amount_to_a_size(name):
    """What real engines wrote: capacity known, usage read, nothing cut."""
    room, watch = watched()
    watch.take("a", parse_page(page(name)), 1.0)

    assert room.capacity is not None
    assert room.capacity.total_blocks > 0
    assert room.limit.theta == 0.97


@pytest.mark.parametrize(("deferred", "is_held_back"), [(1, True), (0, False), (None, False)])
def test_what_an_engine_holds_back_is_noticed(deferred, is_held_back):
    """Such a wait says nothing of how fast it computes."""
    room, watch = watched()
    watch.take("a", [report_of(waiting=2, waiting_deferred=deferred)], 1.0)

    assert room.prefill.was_held_back(1.0) is is_held_back


def test_the_speed_of_prefill_is_learned_without_a_single_stream():
    """Answers that come in one piece tell no first token; the engine knows how long their prompts took."""
    room, watch = watched()
    for second in range(30):
        report = report_of()
        counters = replace(report.counters, prefilled_tokens=20_000 * second, prefill_s=1.0 * second)
        watch.take("a", [replace(report, counters=counters)], float(second))

    assert room.prefill.tokens_per_s == pytest.approx(20_000, rel=0.02)


def test_an_engine_whose_hits_stand_still_while_it_is_asked_is_found_out_by_its_page_alone():
    """Its answers say nothing of cached tokens, as vLLM's do not by default; for an hour its hits have grown."""
    stage = Stage(blocks=0)
    watch = EngineWatch(stage.gate)
    seen = {"asked": 0, "found": 0}

    def page_after(asked, found):
        stage.now += 15.0
        seen["asked"] += asked
        seen["found"] += found
        counters = EngineCounters(prefix_queries_tokens=seen["asked"], prefix_hits_tokens=seen["found"])
        watch.take("a", [replace(report_of(), counters=counters)], stage.now)

    def turn(found):
        placement = stage.enter("mine", 30)
        page_after(30_000, found)
        stage.now += 1.0
        stage.finish(placement)

    page_after(0, 0)
    for _ in range(200):
        turn(29_000)
    for _ in range(20):
        assert not stage.room().prefixes.is_inert
        turn(0)
    page_after(30_000, 0)

    assert stage.room().prefixes.is_inert
    page_after(30_000, 29_000)
    assert not stage.room().prefixes.is_inert
