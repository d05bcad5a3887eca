"""Who holds how many blocks of one backend's KV cache: turns in flight, idle residents, shared heads, others.

Written by the gate alone, at the moment something is decided, so it is never older than the decision. Bounded by the
turns in flight and the resident sessions. Blocks are floats because a block may be shared out (alpha, beta).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from msgspec import Struct

from proxy.core.capacity import KvCapacity
from proxy.state.idle_sessions import IdleSessions
from proxy.state.sessions import Residency, Session

_FOREIGN_WEIGHT: Final = 0.3
"""One sample of the usage gauge is off by some 4 % of the pool."""


class Hold(Struct, eq=False):
    """What one turn in flight holds.

    Attributes:
        context_tokens: its prompt as estimated, and what has been generated so far.
        uncached_tokens: what the engine still has to compute before the first token; 0 afterwards.
        blocks: private blocks, without the shared head.
    """

    session: Session
    head: int
    context_tokens: int
    uncached_tokens: int
    blocks: float
    sent_at: float


@dataclass(slots=True)
class _Head:
    """A shared prefix: those that use it, the running ones among them, and those whose lease is over.

    Attributes:
        sent_at: when the first turn that used it went to the backend.
        is_warm: whether some prompt that begins with it has been computed.
    """

    blocks: float
    users: int = 0
    running: int = 0
    over: int = 0
    sent_at: float = 0.0
    is_warm: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it would go with the sessions whose lease is over."""
        return 0 < self.users == self.over


class KvLedger:
    """One backend's blocks.

    Attributes:
        capacity: what the engine has, or None while that is unknown.
        idle: sessions between two turns.
        foreign_blocks: what others than us hold there, smoothed.
        largest_head_blocks: no head that is booked is larger.
        changes: grows whenever blocks or computing prompts are more or fewer than before.
        head_changes: grows whenever heads are used otherwise than before.
    """

    def __init__(self) -> None:
        self.capacity: KvCapacity | None = None
        self.holds: dict[int, Hold] = {}
        self.idle = IdleSessions()
        self.pinned_blocks = 0.0
        self.head_blocks = 0.0
        self.foreign_blocks = 0.0
        self.uncached_tokens = 0
        self.largest_head_blocks = 0.0
        self.changes = 0
        self.head_changes = 0
        self._running_head_blocks = 0.0
        self._over_head_blocks = 0.0
        self._knows_foreign = False
        self._uncached: dict[int, Hold] = {}
        self._heads: dict[int, _Head] = {}

    @property
    def idle_blocks(self) -> float:
        """What sessions between two turns hold, their heads apart."""
        return self.idle.blocks

    @property
    def used_blocks(self) -> float:
        """Everything that is counted, less what running answers may still add."""
        return self.pinned_blocks + self.idle.blocks + self.head_blocks + self.foreign_blocks

    @property
    def resident_sessions(self) -> int:
        """Idle residents, and turns in flight."""
        return len(self.holds) + self.idle.residents

    def private_blocks(self, context_tokens: int, head: int, head_tokens: int, *, is_running: bool) -> float:
        """Blocks of a context without the head that it shares."""
        capacity = self.capacity
        assert capacity is not None
        blocks = capacity.blocks_for(context_tokens)
        if not is_running:
            blocks -= capacity.beta_blocks
        if head:
            blocks -= self.shared_blocks(head, head_tokens)
        return max(1.0, blocks)

    def shared_blocks(self, head: int, head_tokens: int) -> float:
        """Blocks of a head: what it is booked at, or what it would be booked at."""
        known = self._heads.get(head)
        if known is not None:
            return known.blocks
        if not head:
            return 0.0
        capacity = self.capacity
        assert capacity is not None
        return capacity.alpha * (head_tokens // capacity.block_tokens)

    def pinned_head_blocks(self, head: int = 0) -> float:
        """Blocks of the heads that running turns use, and of this one."""
        known = self._heads.get(head)
        if known is None or known.running:
            return self._running_head_blocks
        return self._running_head_blocks + known.blocks

    def freed_by(self, sessions: Iterable[Session], *, after_over: bool = False) -> Iterator[tuple[Session, float]]:
        """Walk idle sessions as if each in turn were evicted.

        Args:
            sessions: idle ones, in the order of the walk.
            after_over: those whose lease is over have gone before.

        Yields:
            Each with the blocks that would come free, its head's too when nobody else uses that any more.
        """
        gone: dict[int, int] = {}
        for session in sessions:
            rest = self.idle.get(session)
            assert rest is not None
            blocks, head = rest
            known = self._heads.get(head)
            if known is not None:
                gone[head] = gone.get(head, known.over if after_over else 0) + 1
                blocks += known.blocks if gone[head] == known.users else 0.0
            yield session, blocks

    def booked_head_blocks(self, head: int) -> float:
        """What a head is booked at; 0 when nobody uses it."""
        known = self._heads.get(head)
        return known.blocks if known is not None else 0.0

    def knows_head(self, head: int) -> bool:
        """Whether some turn or resident uses this head now."""
        return head in self._heads

    def warming_since(self, head: int) -> float | None:
        """Since when the first prompt with this head is being computed; None when nobody has it, or it is computed."""
        known = self._heads.get(head)
        return None if known is None or known.is_warm else known.sent_at

    def rebook_head(self, head: int, head_tokens: int) -> None:
        """A head's size is better known now."""
        known = self._heads.get(head)
        if known is not None and self.capacity is not None:
            blocks = self.capacity.alpha * (head_tokens // self.capacity.block_tokens)
            if blocks == known.blocks:
                return
            self.changes += 1
            self.head_changes += 1
            self.largest_head_blocks = max(self.largest_head_blocks, blocks)
            self.head_blocks += blocks - known.blocks
            self._running_head_blocks += blocks - known.blocks if known.running else 0.0
            self._over_head_blocks += blocks - known.blocks if known.is_over else 0.0
            known.blocks = blocks

    def take(self, hold_id: int, hold: Hold, head_tokens: int) -> None:
        """A turn goes to the backend."""
        if hold.head:
            known = self._use_head(hold.head, head_tokens)
            if not known.running:
                self._running_head_blocks += known.blocks
            known.running += 1
            known.sent_at = known.sent_at or hold.sent_at
            known.is_warm = known.is_warm or not hold.uncached_tokens
        self.changes += 1
        self.holds[hold_id] = hold
        self.pinned_blocks += hold.blocks
        if hold.uncached_tokens:
            self._uncached[hold_id] = hold
            self.uncached_tokens += hold.uncached_tokens

    def grow(self, hold_id: int, context_tokens: int, blocks: float) -> None:
        """A running turn is larger now: its answer grew, or the engine counted its prompt."""
        hold = self.holds.get(hold_id)
        if hold is not None:
            self.changes += 1
            self.pinned_blocks += blocks - hold.blocks
            hold.context_tokens, hold.blocks = context_tokens, blocks

    def computed(self, hold_id: int) -> None:
        """A turn's prompt is computed: its first token has passed."""
        hold = self._uncached.get(hold_id)
        if hold is not None:
            self._stop_computing(hold_id)
            if (known := self._heads.get(hold.head)) is not None:
                known.is_warm = True

    def _stop_computing(self, hold_id: int) -> None:
        hold = self._uncached.pop(hold_id, None)
        if hold is not None:
            self.changes += 1
            self.uncached_tokens -= hold.uncached_tokens
            hold.uncached_tokens = 0

    def uncached_in_flight(self, now: float, tokens_per_s: float) -> int:
        """Prompt tokens that are still being computed: booked ones, less those whose time is over.

        Args:
            now: monotonic seconds.
            tokens_per_s: how fast the backend computes prompts.
        """
        if not self.uncached_tokens:
            return 0
        while self._uncached:
            hold_id, oldest = next(iter(self._uncached.items()))
            if now <= oldest.sent_at + self._computes_for_s(tokens_per_s):
                break
            self.computed(hold_id)
        return self.uncached_tokens

    def next_computed_at(self, tokens_per_s: float) -> float:
        """When the first prompt that is still being computed counts as computed, should no first token tell so."""
        for oldest in self._uncached.values():
            return oldest.sent_at + self._computes_for_s(tokens_per_s)
        return inf

    def _computes_for_s(self, tokens_per_s: float) -> float:
        return 0.5 + 1.5 * self.uncached_tokens / tokens_per_s

    def give_back(self, hold_id: int) -> Hold | None:
        """A turn has ended, however; None when it was given back before (its engine restarted)."""
        hold = self.holds.pop(hold_id, None)
        if hold is None:
            return None
        self._stop_computing(hold_id)
        self.changes += 1
        self.pinned_blocks -= hold.blocks
        if hold.head:
            known = self._heads[hold.head]
            known.running -= 1
            if not known.running:
                self._running_head_blocks -= known.blocks
            self._leave_head(hold.head)
        if not self.holds:
            self.pinned_blocks = self._running_head_blocks = 0.0  # sums of floats drift; nothing is exactly nothing
        return hold

    def rest(self, session: Session, blocks: float, head: int, head_tokens: int) -> None:
        """A session's turn has ended: its blocks are the latest that the engine would give away.

        Whether it keeps its place (`Residency.IN`) or not, they lie there until everything older is gone.
        """
        self.evict(session)
        if head:
            self._use_head(head, head_tokens).is_warm = True
        self.changes += 1
        self.idle.add(session, (blocks, head))

    def evict(self, session: Session) -> float:
        """A session's idle blocks are gone, or in use again; says how many they were."""
        idle = self.idle
        rest = idle.get(session)
        if rest is None:
            return 0.0
        blocks, head = rest
        if head:
            self._leave_head(head, was_over=idle.is_over(session))
        self.changes += 1
        idle.remove(session)
        return blocks

    def let_go(self) -> None:
        """The lease of the longest idle session that was kept is over."""
        _, head = self.idle.let_go()
        if head:
            known = self._heads[head]
            known.over += 1
            self._over_head_blocks += known.blocks if known.is_over else 0.0

    def over_blocks(self, but: Session | None, growth_each: float) -> float:
        """What would come free with all whose lease is over, except one.

        Args:
            but: who is to stay, if anybody.
            growth_each: blocks that are kept for the growth of each resident.
        """
        blocks = self.idle.over_blocks + self._over_head_blocks + growth_each * self.idle.over_residents
        if but is not None and self.idle.is_over(but):
            rest = self.idle.get(but)
            assert rest is not None
            known = self._heads.get(rest[1])
            blocks -= rest[0] + (known.blocks if known is not None and known.is_over else 0.0)
            blocks -= growth_each if but.residency is Residency.IN else 0.0
        return blocks

    def idle_of(self, session: Session) -> float:
        """What of a session still lies there unused."""
        rest = self.idle.get(session)
        return rest[0] if rest is not None else 0.0

    def longest_idle_first(self) -> Iterator[tuple[Session, float]]:
        """Idle sessions in the order in which the engine's LRU gives their blocks away."""
        return ((session, blocks) for session, (blocks, _) in self.idle)

    def see_foreign(self, seen_blocks: float) -> None:
        """The engine's usage gauge showed so many blocks beyond our own."""
        # The first word counts in full: a proxy that has just started may stand before an engine that others fill.
        weight = _FOREIGN_WEIGHT if self._knows_foreign else 1.0
        self._knows_foreign = True
        self.foreign_blocks += weight * (max(0.0, seen_blocks) - self.foreign_blocks)

    def forget_foreign(self) -> None:
        """Nobody knows any more what others hold."""
        self.foreign_blocks, self._knows_foreign = 0.0, False

    def forget_residents(self) -> list[Session]:
        """Nothing is cached there any more (restart, reset): whose blocks lay there."""
        gone = [session for session, _ in self.idle]
        for session in gone:
            self.evict(session)
        return gone

    def _use_head(self, head: int, head_tokens: int) -> _Head:
        known = self._heads.get(head)
        if known is None:
            known = self._heads[head] = _Head(self.shared_blocks(head, head_tokens))
            self.head_blocks += known.blocks
            self.largest_head_blocks = max(self.largest_head_blocks, known.blocks)
        elif known.over and known.is_over:
            self._over_head_blocks -= known.blocks
        known.users += 1
        self.head_changes += 1
        return known

    def _leave_head(self, head: int, *, was_over: bool = False) -> None:
        known = self._heads[head]
        self.head_changes += 1
        if known.over:
            self._over_head_blocks -= known.blocks if known.is_over else 0.0
            known.over -= was_over
            known.users -= 1
            self._over_head_blocks += known.blocks if known.is_over else 0.0
        else:
            known.users -= 1
        if known.users == 0:
            self.head_blocks -= known.blocks
            del self._heads[head]
        if not self._heads:
            self.head_blocks = self._over_head_blocks = self.largest_head_blocks = 0.0

    def __repr__(self) -> str:
        total = self.capacity.total_blocks if self.capacity else None
        return (
            f"<KvLedger {self.used_blocks:.0f}/{total} blocks: {self.pinned_blocks:.0f} pinned by {len(self.holds)},"
            f" {self.idle_blocks:.0f} idle of {len(self.idle)}, {self.head_blocks:.0f} heads>"
        )
