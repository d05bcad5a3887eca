"""Who holds how many blocks of one backend's KV cache: turns in flight, idle residents, shared heads, others.

Written by the gate alone, at the moment something is decided, so it is never older than the decision. Bounded by the
turns in flight and the resident sessions. Blocks are floats because a block may be shared out (alpha, beta).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from proxy.core.capacity import KvCapacity
from proxy.state.sessions import Residency, Session

_FOREIGN_WEIGHT: Final = 0.3
"""One sample of the usage gauge is off by some 4 % of the pool."""


@dataclass(slots=True, eq=False)
class Hold:
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
    blocks: float
    users: int = 0
    running: int = 0


class KvLedger:
    """One backend's blocks.

    Attributes:
        capacity: what the engine has, or None while that is unknown.
        foreign_blocks: what others than us hold there, smoothed.
    """

    def __init__(self) -> None:
        self.capacity: KvCapacity | None = None
        self.holds: dict[int, Hold] = {}
        self.pinned_blocks = 0.0
        self.idle_blocks = 0.0
        self.head_blocks = 0.0
        self.foreign_blocks = 0.0
        self.uncached_tokens = 0
        self._idle: OrderedDict[Session, tuple[float, int]] = OrderedDict()
        self._heads: dict[int, _Head] = {}

    @property
    def used_blocks(self) -> float:
        """Everything that is counted, less what running answers may still add."""
        return self.pinned_blocks + self.idle_blocks + self.head_blocks + self.foreign_blocks

    @property
    def resident_sessions(self) -> int:
        """Idle residents, and turns in flight; walks the idle ones."""
        return len(self.holds) + sum(session.residency is Residency.IN for session in self._idle)

    def private_blocks(self, context_tokens: int, head: int, head_tokens: int, *, is_running: bool) -> float:
        """Blocks of a context without the head that it shares."""
        capacity = self.capacity
        assert capacity is not None
        blocks = capacity.blocks_for(context_tokens) - (0.0 if is_running else capacity.beta_blocks)
        return max(1.0, blocks - self.shared_blocks(head, head_tokens))

    def shared_blocks(self, head: int, head_tokens: int) -> float:
        """Blocks of a head: what it is booked at, or what it would be booked at."""
        if not head:
            return 0.0
        known = self._heads.get(head)
        if known is not None:
            return known.blocks
        capacity = self.capacity
        assert capacity is not None
        return capacity.alpha * (head_tokens // capacity.block_tokens)

    def new_head_blocks(self, head: int, head_tokens: int) -> float:
        """What booking this head would add: nothing when another session uses it already."""
        return 0.0 if not head or head in self._heads else self.shared_blocks(head, head_tokens)

    def pinned_head_blocks(self, head: int = 0) -> float:
        """Blocks of the heads that running turns use, and of this one."""
        return sum(known.blocks for name, known in self._heads.items() if known.running or name == head)

    def freed_by(self, sessions: Iterable[Session]) -> Iterator[tuple[Session, float]]:
        """Walk idle sessions as if each in turn were evicted.

        Args:
            sessions: idle ones, in the order of the walk.

        Yields:
            Each with the blocks that would come free, its head's too when nobody else uses that any more.
        """
        gone: dict[int, int] = {}
        for session in sessions:
            blocks, head = self._idle[session]
            known = self._heads.get(head)
            if known is not None:
                gone[head] = gone.get(head, 0) + 1
                blocks += known.blocks if gone[head] == known.users else 0.0
            yield session, blocks

    def knows_head(self, head: int) -> bool:
        """Whether some turn or resident uses this head now."""
        return head in self._heads

    def rebook_head(self, head: int, head_tokens: int) -> None:
        """A head's size is better known now."""
        known = self._heads.get(head)
        if known is not None and self.capacity is not None:
            blocks = self.capacity.alpha * (head_tokens // self.capacity.block_tokens)
            self.head_blocks += blocks - known.blocks
            known.blocks = blocks

    def take(self, hold_id: int, hold: Hold, head_tokens: int) -> None:
        """A turn goes to the backend."""
        self._use_head(hold.head, head_tokens)
        if hold.head:
            self._heads[hold.head].running += 1
        self.holds[hold_id] = hold
        self.pinned_blocks += hold.blocks
        self.uncached_tokens += hold.uncached_tokens

    def grow(self, hold_id: int, context_tokens: int, blocks: float) -> None:
        """A running turn is larger now: its answer grew, or the engine counted its prompt."""
        hold = self.holds.get(hold_id)
        if hold is not None:
            self.pinned_blocks += blocks - hold.blocks
            hold.context_tokens, hold.blocks = context_tokens, blocks

    def computed(self, hold_id: int) -> None:
        """A turn's prompt is computed: its first token has passed."""
        hold = self.holds.get(hold_id)
        if hold is not None:
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
        behind_s = self._computes_for_s(tokens_per_s)
        for hold_id, hold in self.holds.items():
            if hold.uncached_tokens and now - hold.sent_at > behind_s:
                self.computed(hold_id)
        return self.uncached_tokens

    def next_computed_at(self, tokens_per_s: float) -> float | None:
        """When the first prompt that is still being computed counts as computed, should no first token tell so."""
        if not self.uncached_tokens:
            return None
        sent_at = next((hold.sent_at for hold in self.holds.values() if hold.uncached_tokens), None)
        return None if sent_at is None else sent_at + self._computes_for_s(tokens_per_s)

    def _computes_for_s(self, tokens_per_s: float) -> float:
        return 0.5 + 1.5 * self.uncached_tokens / tokens_per_s

    def give_back(self, hold_id: int) -> Hold | None:
        """A turn has ended, however; None when it was given back before (its engine restarted)."""
        hold = self.holds.pop(hold_id, None)
        if hold is None:
            return None
        self.pinned_blocks -= hold.blocks
        self.uncached_tokens -= hold.uncached_tokens
        if hold.head:
            self._heads[hold.head].running -= 1
        self._leave_head(hold.head)
        if not self.holds:
            self.pinned_blocks = 0.0  # sums of floats drift; an empty ledger is exactly empty
        return hold

    def rest(self, session: Session, blocks: float, head: int, head_tokens: int) -> None:
        """A session's turn has ended: its blocks are the latest that the engine would give away.

        Whether it keeps its place (`Residency.IN`) or not, they lie there until everything older is gone.
        """
        self.evict(session)
        self._use_head(head, head_tokens)
        self._idle[session] = (blocks, head)
        self.idle_blocks += blocks

    def evict(self, session: Session) -> float:
        """A session's idle blocks are gone, or in use again; says how many they were."""
        entry = self._idle.pop(session, None)
        if entry is None:
            return 0.0
        blocks, head = entry
        self.idle_blocks -= blocks
        self._leave_head(head)
        if not self._idle:
            self.idle_blocks = 0.0
        return blocks

    def idle_of(self, session: Session) -> float:
        """What of a session still lies there unused."""
        entry = self._idle.get(session)
        return entry[0] if entry is not None else 0.0

    def longest_idle_first(self) -> Iterator[tuple[Session, float]]:
        """Idle sessions in the order in which the engine's LRU gives their blocks away."""
        return ((session, blocks) for session, (blocks, _) in self._idle.items())

    def see_foreign(self, seen_blocks: float) -> None:
        """The engine's usage gauge showed so many blocks beyond our own."""
        self.foreign_blocks += _FOREIGN_WEIGHT * (max(0.0, seen_blocks) - self.foreign_blocks)

    def forget_residents(self) -> list[Session]:
        """Nothing is cached there any more (restart, reset): whose blocks lay there."""
        gone = list(self._idle)
        for session in gone:
            self.evict(session)
        return gone

    def _use_head(self, head: int, head_tokens: int) -> None:
        if not head:
            return
        known = self._heads.get(head)
        if known is None:
            known = self._heads[head] = _Head(self.shared_blocks(head, head_tokens))
            self.head_blocks += known.blocks
        known.users += 1

    def _leave_head(self, head: int) -> None:
        known = self._heads.get(head)
        if known is None:
            return
        known.users -= 1
        if known.users == 0:
            self.head_blocks -= known.blocks
            del self._heads[head]
        if not self._heads:
            self.head_blocks = 0.0

    def __repr__(self) -> str:
        total = self.capacity.total_blocks if self.capacity else None
        return (
            f"<KvLedger {self.used_blocks:.0f}/{total} blocks: {self.pinned_blocks:.0f} pinned by {len(self.holds)},"
            f" {self.idle_blocks:.0f} idle of {len(self._idle)}, {self.head_blocks:.0f} heads>"
        )
