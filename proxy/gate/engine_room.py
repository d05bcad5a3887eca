"""The room on one backend, and the two inequalities that keep its engine off both of its cliffs.

(A) what running turns hold, with what their answers may still add, fits: else the engine queues and preempts.
(B) that and the idle sessions that will come back fit together: else each returning turn finds its prefix evicted.
A turn of a resident session needs (A) only, and may push out anybody; a new session needs (B), and may push out only
those whose lease is over. Called by the gate alone; nothing in here waits.
"""

from typing import Final

from proxy.core.capacity import KvCapacity
from proxy.core.turns import OutputStats, StopReason
from proxy.policy import limit as limits
from proxy.policy import sizing
from proxy.state.calibration import PrefillRate, ReturnGaps, ReturnOdds
from proxy.state.kv_ledger import KvLedger
from proxy.state.sessions import Residency, Session

_PREFILL_S: Final = 5.0
"""Uncached prompt tokens in flight are held to this much computing, so that cold prompts do not starve the decoders."""
_START_BATCH_TOKENS: Final = 8_192
_SLOW_START_S: Final = 30.0
_FOREIGN_FRESH_S: Final = 30.0
_LONG_WAIT_S: Final = 30.0
"""Whoever has waited so long for the prefill gate passes it: small prompts in between must not starve a large one."""
_CONTROL_SHARE: Final = 0.05
_GROWTH_WEIGHT: Final = 0.05
_TURNS_AHEAD: Final = 1.0
"""Turns' growth kept free for residents. With none, growing residents push each other out, and each waits for a new
place and pays for its whole prompt: good turns (first token within 5 s) are 14 to 20 % fewer (32 agents, H200), 4 to
8 % on a 243k card. With half a turn 3 to 4 % fewer, with one and a half 2 %.
"""


class EngineRoom:
    """What fits on one backend now.

    Args:
        gaps: how long sessions stay away, learned over all backends.
        odds: whether they come back at all.

    Attributes:
        ledger: who holds what.
        limit: which share of the blocks may be filled.
        prefill: how fast prompts are computed.
        inflight: our turns in flight, known capacity or not.
    """

    def __init__(self, gaps: ReturnGaps, odds: ReturnOdds) -> None:
        self.gaps = gaps
        self.odds = odds
        self.ledger = KvLedger()
        self.limit = limits.Limit()
        self.prefill = PrefillRate()
        self.output = OutputStats()
        self.batch_tokens = _START_BATCH_TOKENS
        self.report_at: float | None = None
        self.last_end_at = float("-inf")
        self.restarted_at = float("-inf")
        self.inflight = 0
        self.control_blocks = 0.0
        self.ghost_misses = 0
        self.turn_growth_tokens = 0.0

    @property
    def capacity(self) -> KvCapacity | None:
        """The engine's blocks, or None while they are unknown."""
        return self.ledger.capacity

    def limit_blocks(self, now: float) -> float:
        """Blocks that may be filled now."""
        capacity = self.capacity
        assert capacity is not None
        age_s = None if self.report_at is None else now - self.report_at
        if age_s is None or age_s > _FOREIGN_FRESH_S:
            self.ledger.foreign_blocks = 0.0  # nobody knows any more; the lower limit stands for it
        return limits.effective(self.limit.theta, age_s) * capacity.total_blocks

    def growth_blocks(self, requests: int) -> float:
        """What the answers of so many running turns may still add."""
        capacity = self.capacity
        assert capacity is not None
        tokens = sizing.growth_tokens(requests, self.output)
        # Half a block a turn is lost to rounding besides.
        return capacity.alpha * (tokens / capacity.block_tokens + 0.5 * requests)

    def turn_growth_blocks(self) -> float:
        """What one resident's context will have grown by when it comes back, answer and tool result."""
        capacity = self.capacity
        assert capacity is not None
        return capacity.alpha * _TURNS_AHEAD * self.turn_growth_tokens / capacity.block_tokens

    def note_turn_growth(self, tokens: int) -> None:
        """A session's context grew by so much from one turn to the next."""
        self.turn_growth_tokens += _GROWTH_WEIGHT * (max(0, tokens) - self.turn_growth_tokens)

    def need_blocks(self, prompt_tokens: int, head: int, head_tokens: int) -> float:
        """What a turn would add to the ledger, its answer apart."""
        ledger = self.ledger
        private = ledger.private_blocks(prompt_tokens, head, head_tokens, is_running=True)
        return private + ledger.new_head_blocks(head, head_tokens)

    def headroom_blocks(self, now: float) -> float:
        """Blocks that a new session could take."""
        return self.limit_blocks(now) - self.ledger.used_blocks - self.growth_blocks(len(self.ledger.holds))

    def fits_running(
        self,
        session: Session,
        need: float,
        uncached_tokens: int,
        now: float,
        *,
        head: int = 0,
        waited_s: float = 0.0,
    ) -> bool:
        """Whether a turn of a resident session may start: (A) and the prefill gate. Makes room if it has to.

        Args:
            session: whose turn it is.
            need: blocks that its turn adds.
            uncached_tokens: prompt tokens that would have to be computed.
            now: monotonic seconds.
            head: what it shares with others.
            waited_s: for how long it has waited.
        """
        if self.capacity is None:
            return True
        ledger = self.ledger
        limit = self.limit_blocks(now)
        growth = self.growth_blocks(len(ledger.holds) + 1)
        heads = ledger.pinned_head_blocks(head)
        pinned = ledger.pinned_blocks + heads + ledger.foreign_blocks + need + growth
        if ledger.holds and (pinned > limit or not self._has_prefill_room(uncached_tokens, now, waited_s)):
            return False
        over = pinned + ledger.head_blocks - heads + ledger.idle_blocks - ledger.idle_of(session) - limit
        # At once: waits of up to 3 s for running answers to make room cost 3 % of the turns (32 agents, H200).
        self._give_away(over, session)
        return True

    def fits_set(
        self,
        session: Session,
        need: float,
        uncached_tokens: int,
        now: float,
        *,
        head: int = 0,
        waited_s: float = 0.0,
        slack: float = 0.0,
    ) -> bool:
        """Whether a session may become resident: (B) and the prefill gate. Takes back leases that are over, or none.

        Args:
            session: whose turn it is; what of it still lies there is not needed twice.
            need: blocks that its turn adds.
            uncached_tokens: prompt tokens that would have to be computed.
            now: monotonic seconds.
            head: what it shares with others.
            waited_s: for how long it has waited.
            slack: share of the limit that may be borrowed from idle sessions, never from running ones.
        """
        if self.capacity is None:
            return True
        ledger = self.ledger
        limit = self.limit_blocks(now)
        growth = self.growth_blocks(len(ledger.holds) + 1)
        heads = ledger.pinned_head_blocks(head)
        pinned = ledger.pinned_blocks + heads + ledger.foreign_blocks + need + growth
        idle = ledger.idle_blocks - ledger.idle_of(session) + ledger.head_blocks - heads
        over = pinned + idle - (1.0 + slack) * limit
        if not ledger.holds and need + growth > limit:
            # A whale: it goes alone, and what is larger than the whole cache goes so that the engine's own error comes.
            self._give_away(over, session)
            return True
        if ledger.holds and (pinned > limit or not self._has_prefill_room(uncached_tokens, now, waited_s)):
            return False
        # Who stays needs room to grow until it comes back; who goes needs none.
        growth_each = self.turn_growth_blocks()
        over += growth_each * ledger.resident_sessions
        is_short = over > 0 and self._reclaimable_blocks(over, session, now, growth_each) < over
        # When nobody runs and nobody has a lease there is room, whatever the books say of shared heads.
        if is_short and (ledger.holds or self._has_residents_but(session, now)):
            return False
        self._give_away(over, session, growth_each)
        return True

    def fits_control(self, need: float) -> bool:
        """Whether a small one-shot request may pass beside everything else."""
        capacity = self.capacity
        if capacity is None or not self.ledger.holds:
            return True
        is_small = self.control_blocks + need <= _CONTROL_SHARE * capacity.total_blocks
        return is_small and self.ledger.used_blocks + need <= capacity.total_blocks

    def forget_residents(self, now: float) -> None:
        """The engine lost its cache: nobody is resident there any more."""
        self.restarted_at = now
        for session in self.ledger.forget_residents():
            session.residency = Residency.OUT

    def next_lease_end(self, now: float) -> float | None:
        """When the next lease that still runs is over, so that somebody may look again."""
        for idle, _ in self.ledger.longest_idle_first():
            if idle.residency is Residency.IN and (end := idle.idle_since + self._lease_s(idle)) > now:
                return end
        return None

    def overfill(self, session: Session, need: float) -> None:
        """A turn goes in without room: book as gone what the engine will give away for it."""
        capacity = self.capacity
        assert capacity is not None
        over = self.ledger.used_blocks - self.ledger.idle_of(session) + need - capacity.total_blocks
        self._give_away(over, session)

    def _has_prefill_room(self, uncached_tokens: int, now: float, waited_s: float) -> bool:
        # What is not streamed tells no first token: after the time that its prompt takes, it counts as computed.
        in_flight = self.ledger.uncached_in_flight(now, self.prefill.tokens_per_s)
        allowed = max(2.0 * self.batch_tokens, _PREFILL_S * self.prefill.tokens_per_s)
        if now - self.restarted_at < _SLOW_START_S:
            allowed /= 2
        if waited_s > _LONG_WAIT_S:
            return in_flight <= allowed  # one oversized prompt at a time
        return in_flight == 0 or in_flight + uncached_tokens <= allowed

    def _lease_s(self, session: Session) -> float:
        capacity = self.capacity
        assert capacity is not None
        if session.turns == 1 and self.odds.is_one_shot(session.is_named):
            return 0.0
        # Who has been here once and does not name its sessions may be anybody: it gets what an ended task gets.
        is_stranger = session.turns == 1 and not session.is_named
        stop = StopReason.END_TURN if is_stranger else session.last_stop
        return sizing.lease_s(stop, capacity.total_tokens, self.prefill.tokens_per_s, self.gaps.usual_s(stop))

    def _is_lease_over(self, session: Session, now: float) -> bool:
        # A resident whose next turn is here, waiting or running, has come back: it does not lose its place by that.
        return not session.has_come_back and now - session.idle_since > self._lease_s(session)

    def _has_residents_but(self, session: Session, now: float) -> bool:
        return any(self._keeps_place(idle, session, now) for idle, _ in self.ledger.longest_idle_first())

    def _keeps_place(self, idle: Session, but: Session, now: float) -> bool:
        return idle is not but and idle.residency is Residency.IN and not self._is_lease_over(idle, now)

    def _reclaimable_blocks(self, enough: float, but: Session, now: float, growth_each: float = 0.0) -> float:
        """Blocks that the engine would give away before the first lease that still runs, and what was kept for them."""
        order = [idle for idle, _ in self.ledger.longest_idle_first() if idle is not but]
        blocks = 0.0
        for session, held in self.ledger.freed_by(order):
            if self._keeps_place(session, but, now):
                break
            blocks += held + (growth_each if session.residency is Residency.IN else 0.0)
            if blocks >= enough:
                break
        return blocks

    def _give_away(self, over: float, but: Session, growth_each: float = 0.0) -> None:
        """Book as gone what the engine gives away first, until enough is free: it asks nobody whose lease runs."""
        if over <= 0:
            return
        for session, blocks in list(self.ledger.longest_idle_first()):
            if over <= 0:
                break
            if session is not but:
                heads = self.ledger.head_blocks
                self.ledger.evict(session)
                over -= blocks + heads - self.ledger.head_blocks
                over -= growth_each if session.residency is Residency.IN else 0.0
                session.residency = Residency.OUT

    def __repr__(self) -> str:
        return f"<EngineRoom theta {self.limit.theta:.2f}, {self.ledger!r}>"
