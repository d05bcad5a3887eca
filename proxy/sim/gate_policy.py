"""The product's own gate as a policy of the simulation: the object that serves traffic, fed with simulated events.

Each of its parts can be switched off alone, to see what it is worth.
"""

from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from xxhash import xxh3_64_intdigest

from proxy.core.capacity import KvCapacity
from proxy.core.turns import Rank, SessionKey, Turn, TurnEnd
from proxy.gate import Gate, GateSettings, Placement
from proxy.gate.engine_room import EngineRoom
from proxy.gate.leases import Leases
from proxy.gate.lessons import Lessons
from proxy.gate.starts import Starts
from proxy.sim.policies import Policy
from proxy.sim.presets import EngineConfig
from proxy.sim.report import EngineReport
from proxy.sim.workloads import OpenTurn
from proxy.state.kv_ledger import KvLedger
from proxy.state.sessions import Session
from proxy.state.wait_queue import Waiting

_MODEL: Final = "simulated"
_HIGH_USAGE: Final = 0.9
_WAKE_AFTER_S: Final = 0.01


class _NoLeases(Leases):
    def lease_s(self, session: Session) -> float:  # noqa: ARG002
        return 0.0


class _RoomWithoutLeases(EngineRoom):
    new_leases = _NoLeases


class _RoomWithoutPrefillGate(EngineRoom):
    def _allowed_prefill(self, now: float) -> float:  # noqa: ARG002
        return inf


class _RoomWithoutGrowth(EngineRoom):
    def growth_blocks(self, requests: int) -> float:  # noqa: ARG002
        return 0.0


class _RoomWithoutTurnGrowth(EngineRoom):
    def turn_growth_blocks(self) -> float:
        return 0.0


class _LedgerWithoutForeign(KvLedger):
    def see_foreign(self, seen_blocks: float) -> None:
        pass


class _RoomWithoutForeign(EngineRoom):
    new_ledger = _LedgerWithoutForeign


class _StartsWithoutHeadReservation(Starts):
    def _overdue(self, rank: Rank, now: float) -> Waiting | None:  # noqa: ARG002
        return None


class _LessonsWithoutControl(Lessons):
    def rank(self, waiting: Waiting) -> Rank:
        rank = super().rank(waiting)
        return Rank.SESSION if rank is Rank.CONTROL else rank


class _LessonsWithoutGhosts(Lessons):
    def learn(self, room: EngineRoom, placement: Placement, end: TurnEnd, now: float) -> None:
        limit = room.limit
        super().learn(room, placement, end, now)
        room.limit = limit


class _LessonsSmallestFirst(Lessons):
    def served(self, key: str) -> float:  # noqa: ARG002
        return 0.0

    def score(self, waiting: Waiting, now: float) -> float:  # noqa: ARG002
        return float(waiting.prompt_tokens)


class _LessonsOldestFirst(Lessons):
    def served(self, key: str) -> float:  # noqa: ARG002
        return 0.0

    def score(self, waiting: Waiting, now: float) -> float:  # noqa: ARG002
        return waiting.stamp


@dataclass(frozen=True, slots=True)
class Variant:
    """The gate with one part switched off."""

    starts: type[Starts] = Starts
    lessons: type[Lessons] = Lessons
    room: type[EngineRoom] = EngineRoom
    settings: GateSettings = field(default_factory=GateSettings)
    shares_heads: bool = True
    keeps_tickets: bool = True


VARIANTS: Final[dict[str, Variant]] = {
    "": Variant(),
    "no-leases": Variant(room=_RoomWithoutLeases),
    "no-prefill-gate": Variant(room=_RoomWithoutPrefillGate),
    "no-answer-reserve": Variant(room=_RoomWithoutGrowth),
    "no-turn-reserve": Variant(room=_RoomWithoutTurnGrowth),
    "no-ghost-loop": Variant(lessons=_LessonsWithoutGhosts),
    "no-foreign-load": Variant(room=_RoomWithoutForeign),
    "no-control-lane": Variant(lessons=_LessonsWithoutControl),
    "no-head-reservation": Variant(starts=_StartsWithoutHeadReservation),
    "no-aging": Variant(lessons=_LessonsSmallestFirst),
    "oldest-first": Variant(lessons=_LessonsOldestFirst),
    "no-head-sharing": Variant(shares_heads=False),
    "no-tickets": Variant(keeps_tickets=False),
    "no-slices": Variant(settings=GateSettings(target_wait_s=inf)),
    "throughput": Variant(settings=GateSettings(target_wait_s=1_800.0)),
    "no-herd": Variant(settings=GateSettings(holds_herd=False)),
    "knee-guard": Variant(settings=GateSettings(guards_knee=True)),
    "even": Variant(settings=GateSettings(target_wait_s=480.0)),
}


class GatePolicy(Policy):
    """The gate before one or more backends.

    Args:
        name: as shown.
        backends: how many.
        config: what they are; the gate learns of it what an engine's labels say.
        capacity_error: factor on the capacity that the labels state.
        variant: which part is switched off.
        report_interval_s: between two scrapes.
    """

    def __init__(
        self,
        name: str,
        backends: int,
        config: EngineConfig,
        *,
        capacity_error: float = 1.0,
        variant: Variant,
        report_interval_s: float = 1.0,
    ) -> None:
        super().__init__(name, backends)
        self._variant = variant
        self._names = [f"engine-{number}" for number in range(backends)]
        settings = replace(variant.settings, report_interval_s=report_interval_s)
        self.gate = Gate(self._names, settings, lessons=variant.lessons(), room=variant.room, starts=variant.starts)
        capacity = KvCapacity(
            total_blocks=int(config.usable_blocks * capacity_error),
            block_tokens=config.block_tokens,
            beta_blocks=float(config.fixed_blocks),
        )
        for backend in self._names:
            self.gate.see_capacity(backend, capacity, config.max_num_batched_tokens)
        self._waiting: dict[int, Waiting] = {}
        self._turns: dict[int, OpenTurn] = {}
        self._placements: dict[int, Placement] = {}
        self._preemptions = [0] * backends
        self._counted: list[tuple[float, int, int]] = [(0.0, 0, 0)] * backends
        self._held_by_cap_s = 0.0

    def arrive(self, turn: OpenTurn, now: float) -> bool:
        """See `Policy`."""
        if not self.gate.queue.has_room(0):
            return False
        waiting = self.gate.arrive(self._described(turn), self._names, now, model=_MODEL)
        self._waiting[turn.id] = waiting
        self._turns[waiting.id] = turn
        return super().arrive(turn, now)

    def start(self, now: float) -> list[OpenTurn]:
        """See `Policy`."""
        return super().start(now) if self.waiting else []

    def _choose(self, now: float) -> list[OpenTurn]:
        started: list[OpenTurn] = []
        for placement in self.gate.pump(now):
            turn = self._turns.pop(placement.waiting.id)
            del self._waiting[turn.id]
            turn.backend = self._names.index(placement.backend)
            self._placements[turn.id] = placement
            started.append(turn)
        return started

    def deadline(self, turn: OpenTurn) -> float:
        """See `Policy`."""
        return self._waiting[turn.id].deadline

    def give_up(self, turn: OpenTurn, now: float) -> None:
        """See `Policy`."""
        super().give_up(turn, now)
        waiting = self._waiting.pop(turn.id, None)
        if waiting is not None:
            del self._turns[waiting.id]
            self.gate.give_up(waiting, now, keeps_ticket=self._variant.keeps_tickets)

    def first_token(self, turn: OpenTurn, now: float) -> None:
        """See `Policy`."""
        self.gate.first_token(self._placements[turn.id], now)

    def generated(self, turn: OpenTurn) -> None:
        """See `Policy`."""
        self.gate.generated(self._placements[turn.id], turn.generated_tokens)

    def end(self, turn: OpenTurn, now: float, *, is_complete: bool) -> None:
        """See `Policy`."""
        super().end(turn, now, is_complete=is_complete)
        placement = self._placements.pop(turn.id)
        if is_complete:
            end = TurnEnd(
                turn.prompt_tokens, turn.cached_tokens, turn.generated_tokens, turn.thread.turn.stop, True, True
            )
        else:
            end = TurnEnd(has_first_token=turn.first_at is not None)
        self.gate.end(placement, end, now)

    def report(self, backend: int, report: EngineReport, now: float) -> None:
        """See `Policy`."""
        preempted = report.counters.preemptions - self._preemptions[backend]
        self._preemptions[backend] = report.counters.preemptions
        self.gate.see_report(
            self._names[backend],
            now,
            usage_ratio=report.usage_ratio,
            preemptions=max(0, preempted),
            is_short_of_memory=report.waiting > 0 and report.usage_ratio > _HIGH_USAGE,
        )
        self._see_speed(backend, report, now)

    def _see_speed(self, backend: int, report: EngineReport, now: float) -> None:
        counters = report.counters
        computed = counters.prompt - counters.prompt_cached
        (before, generated, computed_before) = self._counted[backend]
        self._counted[backend] = now, counters.generation, computed
        interval_s = now - before
        room = self.gate.rooms[self._names[backend]]
        if counters.generation < generated or interval_s <= 0:
            return  # another process
        room.knee.see_speed(
            now,
            running=report.running,
            tokens_per_s=(counters.generation - generated) / interval_s,
            computed_tokens_per_s=max(0, computed - computed_before) / interval_s,
            interval_s=interval_s,
        )
        self._held_by_cap_s += 0.0 if room.knee.cap is None else interval_s

    def restarted(self, backend: int, now: float) -> None:
        """See `Policy`."""
        self.gate.see_restart(self._names[backend], now)

    def next_event_at(self, now: float) -> float | None:
        """See `Policy`."""
        at = self.gate.next_event_at(now)
        return None if at is None else at + _WAKE_AFTER_S

    def facts(self) -> dict[str, float]:
        """See `Policy`."""
        rooms = self.gate.rooms.values()
        return {
            "theta": min(room.limit.theta for room in rooms),
            "ghost_misses": float(sum(room.ghost_misses for room in rooms)),
            "capped_s": self._held_by_cap_s,
            **{name: float(number) for name, number in self.gate.counters.items()},
        }

    def _described(self, turn: OpenTurn) -> Turn:
        """What the product would read from the request's body."""
        thread = turn.thread
        ratio = thread.bytes_per_token
        if thread.chain:
            text_bytes = int(turn.prompt_tokens * ratio)
            return Turn(SessionKey("", thread.session), text_bytes, chain=thread.chain, spans=thread.spans)
        head_tokens = min(thread.plan.head_tokens, turn.prompt_tokens)
        identity = (thread.session, thread.agent, thread.epoch)
        return Turn(
            SessionKey("", thread.session, thread.agent),
            text_bytes=int(turn.prompt_tokens * ratio),
            head_bytes=int(head_tokens * ratio) if self._variant.shares_heads else 0,
            head=xxh3_64_intdigest(thread.plan.head.encode()) if self._variant.shares_heads else 0,
            chain=tuple(hash((identity, index)) for index in range(thread.messages)),
        )
