"""Takes a snapshot of the fleet: gate, ledgers and engine reports as the frozen values that metrics and pages show.

Called at a scrape or a look at the status page. Its cost grows with backends and with waiting requests (bounded by
`queue.max_waiting`), never with the sessions known.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from proxy.core.backends import Backend
from proxy.core.reports import EngineReport
from proxy.core.snapshots import BackendSnapshot, EngineSnapshot, FleetSnapshot, KvSnapshot, WaitingSnapshot
from proxy.core.turns import Rank
from proxy.dispatch import Fleet
from proxy.gate import Gate
from proxy.gate.engine_room import EngineRoom
from proxy.state.wait_queue import WaitQueue

_SHOWN_S: Final = 30.0
"""An engine's own figures disappear when they are older: a dead engine has no queue."""


def snapshot_of(
    fleet: Fleet, gate: Gate | None, reports: Callable[[str], Sequence[EngineReport]], now: float
) -> FleetSnapshot:
    """Everything at one moment.

    Args:
        fleet: the backends.
        gate: who decides on admission; None where that is off.
        reports: the last good reports of a backend by its name, none before the first.
        now: monotonic seconds.
    """
    backends = tuple(_backend(backend, fleet, gate, reports(backend.name), now) for backend in fleet.backends)
    if gate is None:
        return FleetSnapshot(backends=backends)
    return FleetSnapshot(
        admission_mode="enforce" if gate.settings.is_enforcing else "shadow",
        backends=backends,
        waiting=tuple(_waiting(rank, gate.queue, now) for rank in Rank),
        known_sessions=gate.sessions.count(),
    )


def _backend(
    backend: Backend, fleet: Fleet, gate: Gate | None, reports: Sequence[EngineReport], now: float
) -> BackendSnapshot:
    # Ranks show as one backend: names are a closed set, and what is held adds up.
    rooms = [gate.rooms[name] for name in fleet.ranks.rooms_of(backend.name)] if gate is not None else []
    report_at = rooms[0].report_at if rooms else None
    age_s = now - report_at if report_at is not None else None
    return BackendSnapshot(
        name=backend.name,
        is_up=fleet.health.is_up(backend.name),
        inflight_requests=fleet.ledger.inflight(backend.name),
        report_age_s=age_s,
        ghost_misses=_ghost_misses(backend, fleet, gate) if gate is not None else None,
        kv=_with_pool(_whole([_kv(room, now) for room in rooms]), _pool(backend, fleet, gate, now)),
        engine=_engine(reports) if reports and age_s is not None and age_s <= _SHOWN_S else None,
    )


def _ghost_misses(backend: Backend, fleet: Fleet, gate: Gate) -> int:
    """Those of ranks that are gone too, or a counter would go back."""
    return sum(gate.rooms[name].ghost_misses for name in fleet.ranks.all_rooms_of(backend.name))


def _whole(parts: Sequence[KvSnapshot | None]) -> KvSnapshot | None:
    """What is held of all ranks together; unknown as soon as one is."""
    known = [part for part in parts if part is not None]
    if len(known) < 2 or len(known) < len(parts):
        return known[0] if known and len(known) == len(parts) else None
    capacity = sum(part.capacity_tokens for part in known)
    return KvSnapshot(
        capacity_tokens=capacity,
        running_tokens=sum(part.running_tokens for part in known),
        head_tokens=sum(part.head_tokens for part in known),
        idle_tokens=sum(part.idle_tokens for part in known),
        foreign_tokens=sum(part.foreign_tokens for part in known),
        growth_tokens=sum(part.growth_tokens for part in known),
        headroom_tokens=sum(part.headroom_tokens for part in known),
        prefill_tokens=sum(part.prefill_tokens for part in known),
        admission_ratio=sum(part.admission_ratio * part.capacity_tokens for part in known) / capacity,
        running_turns=sum(part.running_turns for part in known),
        idle_sessions=sum(part.idle_sessions for part in known),
        external_ratio=_mean([part.external_ratio for part in known]),
        is_prefix_cache_inert=all(part.is_prefix_cache_inert for part in known),
        turn_cap=_total([part.turn_cap for part in known]),
    )


def _pool(backend: Backend, fleet: Fleet, gate: Gate | None, now: float) -> KvSnapshot | None:
    """What is held by turns that may run on any of several ranks; None where there are none to tell apart."""
    name = fleet.ranks.pool_of(backend.name)
    return _kv(gate.rooms[name], now) if gate is not None and name != backend.name else None


def _with_pool(ranks: KvSnapshot | None, pool: KvSnapshot | None) -> KvSnapshot | None:
    """The ranks, and what lies somewhere on them: to each its running part is foreign, and its idle part unseen."""
    if ranks is None or pool is None:
        return ranks
    return replace(
        ranks,
        running_tokens=ranks.running_tokens + pool.running_tokens,
        head_tokens=ranks.head_tokens + pool.head_tokens,
        idle_tokens=ranks.idle_tokens + pool.idle_tokens,
        foreign_tokens=max(0, ranks.foreign_tokens - pool.running_tokens - pool.head_tokens),
        growth_tokens=ranks.growth_tokens + pool.growth_tokens,
        headroom_tokens=ranks.headroom_tokens - pool.idle_tokens - pool.growth_tokens,
        prefill_tokens=ranks.prefill_tokens + pool.prefill_tokens,
        running_turns=ranks.running_turns + pool.running_turns,
        idle_sessions=ranks.idle_sessions + pool.idle_sessions,
        is_prefix_cache_inert=ranks.is_prefix_cache_inert or pool.is_prefix_cache_inert,
    )


def _kv(room: EngineRoom, now: float) -> KvSnapshot | None:
    capacity, ledger = room.capacity, room.ledger
    if capacity is None:
        return None

    def tokens(blocks: float) -> int:
        return round(blocks * capacity.block_tokens)

    running_turns = len(ledger.holds)
    return KvSnapshot(
        capacity_tokens=capacity.total_tokens,
        running_tokens=tokens(ledger.pinned_blocks),
        head_tokens=tokens(ledger.head_blocks),
        idle_tokens=tokens(ledger.idle_blocks),
        foreign_tokens=tokens(ledger.foreign_blocks),
        growth_tokens=tokens(room.growth_blocks(running_turns)),
        headroom_tokens=tokens(room.headroom_blocks(now)),
        prefill_tokens=ledger.uncached_tokens,
        admission_ratio=room.limit_blocks(now) / capacity.total_blocks,
        running_turns=running_turns,
        idle_sessions=ledger.resident_sessions - running_turns,
        external_ratio=room.external.ratio,
        is_prefix_cache_inert=room.prefixes.is_inert,
        turn_cap=room.knee.cap,
    )


def _engine(reports: Sequence[EngineReport]) -> EngineSnapshot:
    counters = [report.counters for report in reports]
    drafts = _total([one.drafts for one in counters])
    proposed = _total([one.draft_tokens for one in counters])
    accepted = _total([one.accepted_draft_tokens for one in counters])
    return EngineSnapshot(
        running_requests=_total([report.running for report in reports]),
        waiting_requests=_total([report.waiting for report in reports]),
        kv_usage_ratio=_mean([report.kv_usage_ratio for report in reports]),
        preemptions=_total([one.preemptions for one in counters]),
        drafts=drafts,
        draft_tokens=proposed,
        accepted_draft_tokens=accepted,
        # Some engines tell the ratios only.
        draft_accept_ratio=accepted / proposed
        if proposed and accepted is not None
        else _mean([report.draft_accept_ratio for report in reports]),
        tokens_per_draft=1 + accepted / drafts
        if drafts and accepted is not None
        else _mean([report.tokens_per_draft for report in reports]),
    )


def _waiting(rank: Rank, queue: WaitQueue, now: float) -> WaitingSnapshot:
    waiting = queue.of(rank)
    return WaitingSnapshot(
        name=rank.name.lower(),
        requests=len(waiting),
        prompt_tokens=sum(one.prompt_tokens for one in waiting),
        oldest_wait_s=now - min(one.stamp for one in waiting) if waiting else None,
    )


def _total(counts: Sequence[int | None]) -> int | None:
    """Their sum; unknown as soon as one is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _mean(ratios: Sequence[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return sum(known) / len(known) if known and len(known) == len(ratios) else None
