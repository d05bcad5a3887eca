import pytest

from proxy.core.backends import Backend
from proxy.core.capacity import KvCapacity
from proxy.core.reports import EngineCounters, EngineKind, EngineReport
from proxy.core.snapshots import EngineSnapshot
from proxy.core.turns import SessionKey, Turn, TurnEnd
from proxy.dispatch import Fleet
from proxy.gate import Gate, GateSettings
from proxy.state.health import HealthTable
from proxy.state.ledger import Ledger
from proxy.state.models import ModelTable
from proxy.state.stored_responses import StoredResponses
from proxy.telemetry.snapshots import snapshot_of

CAPACITY = KvCapacity(total_blocks=1_000, block_tokens=100)


@pytest.fixture
def fleet():
    """One backend that is up."""
    health = HealthTable(fall=3)
    health.add("a")
    backend = Backend(name="a", host="a", port=1, authority="a")
    return Fleet((backend,), health, ModelTable(), Ledger(), StoredResponses())


@pytest.fixture
def gate():
    """A gate before one engine of 100,000 tokens that has just reported."""
    gate = Gate(["a"], GateSettings())
    gate.see_capacity("a", CAPACITY)
    gate.see_report("a", 10.0, usage_ratio=0.0, preemptions=0, is_short_of_memory=False)
    return gate


def turn(session, tokens):
    """The first turn of a session, of about so many tokens."""
    return Turn(SessionKey("", session), text_bytes=4 * tokens, chain=(hash(session),))


def started(gate, session, tokens, now, *, candidates=("a",)):
    """A turn that found room at once."""
    gate.arrive(turn(session, tokens), candidates, now)
    (placement,) = gate.pump(now)
    return placement


def seen(fleet, gate, now, *reports):
    """The snapshot when the engine's last page said this."""
    return snapshot_of(fleet, gate, lambda _name: reports, now)


def report(rank="0", **values):
    """What one rank says."""
    counters = {name: values.pop(name) for name in tuple(values) if name in EngineCounters.__dataclass_fields__}
    return EngineReport(kind=EngineKind.VLLM, rank=rank, counters=EngineCounters(**counters), **values)


def test_the_parts_of_the_cache_add_up_to_the_limit(fleet, gate):
    """Running, idle, kept for answers and free are what may be filled, so nobody has to guess where room went."""
    done = started(gate, "idle", 20_000, 10.0)
    gate.end(done, TurnEnd(20_000, 0, 100, has_first_token=True, is_complete=True), 10.5)
    started(gate, "running", 30_000, 10.6)

    (backend,) = seen(fleet, gate, 11.0).backends
    kv = backend.kv

    assert kv is not None
    assert (kv.running_turns, kv.idle_sessions, kv.capacity_tokens, kv.prefill_tokens) == (1, 1, 100_000, 30_000)
    assert (kv.running_tokens, kv.idle_tokens) == (pytest.approx(30_000, abs=200), pytest.approx(20_100, abs=200))
    held = kv.running_tokens + kv.head_tokens + kv.idle_tokens + kv.foreign_tokens + kv.growth_tokens
    assert held + kv.headroom_tokens == pytest.approx(kv.admission_ratio * kv.capacity_tokens, abs=5)


def test_an_engine_of_unknown_size_shows_no_figures(fleet):
    """Unknown is neither zero nor free."""
    (backend,) = seen(fleet, Gate(["a"], GateSettings()), 5.0).backends

    assert (backend.kv, backend.engine, backend.report_age_s) == (None, None, None)


def test_waiting_is_told_by_class_with_the_oldest(fleet, gate):
    """What does not fit waits, and how long the first of them has waited is told."""
    started(gate, "large", 80_000, 10.0)
    gate.arrive(turn("x", 30_000), ["a"], 11.0)
    gate.arrive(turn("y", 40_000), ["a"], 14.0)
    assert gate.pump(14.0) == []

    snapshot = seen(fleet, gate, 21.0)

    waiting = {one.name: (one.requests, one.prompt_tokens, one.oldest_wait_s) for one in snapshot.waiting}
    assert waiting == {
        "resident": (0, 0, None),
        "control": (0, 0, None),
        "session": (2, 70_000, 10.0),
        "batch": (0, 0, None),
    }
    assert (snapshot.admission_mode, snapshot.known_sessions) == ("enforce", 3)


def test_an_old_report_lowers_the_limit_and_its_figures_go(fleet, gate):
    """Its age is shown for as long as it lasts; what the engine said then is not."""
    fresh, old = (seen(fleet, gate, now, report(waiting=3)).backends[0] for now in (11.0, 45.0))

    assert fresh.kv is not None
    assert old.kv is not None
    assert old.kv.admission_ratio < fresh.kv.admission_ratio
    assert (fresh.report_age_s, old.report_age_s) == (1.0, 35.0)
    assert fresh.engine == EngineSnapshot(waiting_requests=3)
    assert old.engine is None


def test_ranks_are_summed_and_ratios_made_from_the_sums(fleet, gate):
    """A rank that drafts little does not weigh as much as one that drafts a lot."""
    quiet = report("0", running=1, kv_usage_ratio=0.25, drafts=10, draft_tokens=30, accepted_draft_tokens=0)
    busy = report("1", running=4, kv_usage_ratio=0.75, drafts=90, draft_tokens=270, accepted_draft_tokens=180)

    engine = seen(fleet, gate, 11.0, quiet, busy).backends[0].engine

    assert engine == EngineSnapshot(
        running_requests=5,
        kv_usage_ratio=0.5,
        drafts=100,
        draft_tokens=300,
        accepted_draft_tokens=180,
        draft_accept_ratio=0.6,
        tokens_per_draft=2.8,
    )


def test_ratios_that_an_engine_tells_itself_are_taken_as_they_are(fleet, gate):
    """SGLang has no counters behind them."""
    said = report(draft_accept_ratio=0.5, tokens_per_draft=2.5)

    engine = seen(fleet, gate, 11.0, said).backends[0].engine

    assert engine == EngineSnapshot(draft_accept_ratio=0.5, tokens_per_draft=2.5)


@pytest.mark.parametrize(
    ("settings", "mode"), [(GateSettings(), "enforce"), (GateSettings(is_enforcing=False), "shadow")]
)
def test_the_mode_is_that_of_the_gate(fleet, settings, mode):
    """Who looks sees whether the gate means it."""
    assert seen(fleet, Gate(["a"], settings), 0.0).admission_mode == mode


def test_without_a_gate_only_the_backends_are_known(fleet):
    """Admission off: no queue, no sessions, no cache figures."""
    snapshot = seen(fleet, None, 0.0)

    assert (snapshot.admission_mode, snapshot.waiting, snapshot.known_sessions) == ("off", (), None)
    assert [(one.name, one.is_up, one.ghost_misses, one.kv) for one in snapshot.backends] == [("a", True, None, None)]


def test_ranks_are_summed_under_their_backends_name(fleet, gate):
    """What each holds adds up, and a limit is a share of the whole; misses of a rank that is gone stay counted."""
    fleet.ranks.see("a", 2)
    gate.open_room("a#1", "a")
    gate.open_room("a#any", "a")
    gate.see_capacity("a#1", KvCapacity(total_blocks=500, block_tokens=100))
    gate.see_report("a#1", 10.0, usage_ratio=0.2, preemptions=0, is_short_of_memory=False)
    started(gate, "one", 10_000, 10.0)
    gate.rooms["a"].ghost_misses, gate.rooms["a#1"].ghost_misses = 2, 3
    (backend,) = seen(fleet, gate, 10.0).backends
    (first, second) = (gate.rooms[name] for name in ("a", "a#1"))

    assert backend.kv is not None
    assert (backend.name, backend.kv.capacity_tokens, backend.kv.foreign_tokens) == ("a", 150_000, 10_000)
    assert backend.kv.running_turns == 1
    limits = first.limit_blocks(10.0) + second.limit_blocks(10.0)
    assert backend.kv.admission_ratio == pytest.approx(limits / 1_500)
    assert backend.ghost_misses == 5

    fleet.ranks.see("a", 1)
    (backend,) = seen(fleet, gate, 10.0).backends
    assert backend.ghost_misses == 5
    assert backend.kv is not None
    assert backend.kv.capacity_tokens == 100_000


def test_what_may_run_on_any_rank_is_shown_and_not_counted_twice(fleet, gate):
    """Ranks see its running turns as somebody else's, which they are not, and nothing of its idle sessions."""
    fleet.ranks.see("a", 2)
    for name in fleet.ranks.current_rooms_of("a"):
        gate.open_room(name, "a")
        blocks = 1_760 if name == "a#any" else 1_000
        gate.see_capacity(name, KvCapacity(total_blocks=blocks, block_tokens=100))
    rests = started(gate, "rests", 10_000, 10.0, candidates=["a#any"])
    gate.end(rests, TurnEnd(prompt_tokens=10_000, completion_tokens=10, has_first_token=True, is_complete=True), 11.0)
    started(gate, "runs", 20_000, 11.0, candidates=["a#any"])
    # The first word of a usage counts in full, later ones by three tenths.
    for name in ("a", "a#1"):
        gate.see_report(name, 12.0, usage_ratio=0.2, preemptions=0, is_short_of_memory=False)
    kv = seen(fleet, gate, 12.0).backends[0].kv

    assert kv is not None
    assert (kv.capacity_tokens, kv.running_tokens, kv.foreign_tokens) == (200_000, 20_000, 6_000)
    assert (kv.running_turns, kv.idle_sessions) == (1, 1)
    limit_tokens = 100 * sum(gate.rooms[name].limit_blocks(12.0) for name in ("a", "a#1"))
    assert kv.headroom_tokens == pytest.approx(limit_tokens - 26_000 - kv.idle_tokens - kv.growth_tokens, abs=2)


def test_a_rank_of_unknown_size_leaves_the_whole_unknown(fleet, gate):
    """Half a cache is no cache's size."""
    fleet.ranks.see("a", 2)
    gate.open_room("a#1", "a")
    gate.open_room("a#any", "a")

    assert seen(fleet, gate, 10.0).backends[0].kv is None
