"""The room on one backend, and the two inequalities that keep its engine off both of its cliffs.

(A) what running turns hold, with what their answers may still add, fits: else the engine queues and preempts.
(B) that and the idle sessions that will come back fit together: else each returning turn finds its prefix evicted.
Where it is asked for, the engine's own knee (D) bounds how many run besides, whatever they hold.
A turn of a resident session needs (A) only, and may push out anybody; a new session needs (B), and may push out only
those whose lease is over. Called by the gate alone, and by what reads the engine's reports for it; nothing in here
waits.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from proxy.core.capacity import KvCapacity
from proxy.core.turns import OutputStats
from proxy.gate.knee_guard import KneeGuard
from proxy.gate.leases import Leases
from proxy.policy import limit as limits
from proxy.policy import sizing
from proxy.state.calibration import ExternalShare, PrefillRate, PrefixWitness, ReleaseRate, ReturnGaps, ReturnOdds
from proxy.state.kv_ledger import KvLedger
from proxy.state.sessions import Residency, Session

_PREFILL_S: Final = 5.0
"""Uncached prompt tokens in flight are held to this much computing, so that cold prompts do not starve the decoders."""
_START_BATCH_TOKENS: Final = 8_192
_SLOW_START_S: Final = 30.0
LONG_WAIT_S: Final = 30.0
"""Whoever has waited so long for the prefill gate passes it: small prompts in between must not starve a large one."""
_FULL_S: Final = 3.0
"""Who answered that it has no room is believed for so long when no report comes to say otherwise."""
AGENT_SLACK: Final = 0.1
"""Of the limit, that a sub-agent may borrow from idle sessions while its parent is in."""
_ROUNDING: Final = 1e-6
"""Blocks by which a bound is wider than its sum, because floats are added in another order."""
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
        report_interval_s: between two reports of the engine when all is well.
        guards_knee: whether turns are capped where more of them would be slower.

    Attributes:
        ledger: who holds what.
        leases: whose place is kept between two turns.
        limit: which share of the blocks may be filled.
        prefill: how fast prompts are computed.
        external: how much of what is not in the engine's cache is brought in from outside.
        prefixes: whether its prefix cache does anything.
        release: how fast room comes free: turns that leave nothing behind, prefixes that are given away.
        inflight: our turns in flight, known capacity or not.
        full_at: when the engine last answered that it has no room.
        is_asleep: its last report says that it takes no work until it is woken.
        knee: how many turns may run, whatever they hold.
    """

    new_ledger: type[KvLedger] = KvLedger
    new_leases: type[Leases] = Leases
    """The policy simulation puts others in their place."""

    def __init__(
        self, gaps: ReturnGaps, odds: ReturnOdds, report_interval_s: float = 1.0, *, guards_knee: bool = False
    ) -> None:
        self.report_interval_s = report_interval_s
        self._lost_after_s = limits.lost_after_s(report_interval_s)
        self.ledger = self.new_ledger()
        self.leases = self.new_leases(self.ledger, gaps, odds, self._refill_tokens_per_s)
        self.limit = limits.Limit()
        self.prefill = PrefillRate()
        self.release = ReleaseRate()
        self.external = ExternalShare()
        self.prefixes = PrefixWitness()
        self.knee = KneeGuard(self.ledger, self.prefill, is_on=guards_knee)
        self.output = OutputStats()
        self.batch_tokens = _START_BATCH_TOKENS
        self.report_at: float | None = None
        self.last_end_at = float("-inf")
        self.restarted_at = float("-inf")
        self.full_at = float("-inf")
        self.is_asleep = False
        self.inflight = 0
        self.control_blocks = 0.0
        self.ghost_misses = 0
        self.turn_growth_tokens = 0.0
        self._grown_turns = 0

    @property
    def capacity(self) -> KvCapacity | None:
        """The engine's blocks, or None while they are unknown."""
        return self.ledger.capacity

    def is_full(self, now: float) -> bool:
        """Whether the engine has answered that it has no room, and has not reported since, or sleeps. Never unheard."""
        if self.is_asleep and self.report_at is not None:
            return now - self.report_at <= self._lost_after_s
        has_said_so = now < self.full_at + _FULL_S  # hardly ever, and asked for each decision
        return has_said_so and self.capacity is not None and now < self.full_until

    @property
    def full_until(self) -> float:
        """Until when that answer counts."""
        has_reported = self.report_at is not None and self.report_at > self.full_at
        return float("-inf") if has_reported else self.full_at + _FULL_S

    def limit_blocks(self, now: float) -> float:
        """Blocks that may be filled now."""
        capacity = self.ledger.capacity
        assert capacity is not None
        age_s = None if self.report_at is None else now - self.report_at
        if age_s is None or age_s > self._lost_after_s:
            self.ledger.forget_foreign()  # the lower limit stands for it
        return limits.effective(self.limit.theta, age_s, self.report_interval_s) * capacity.total_blocks

    def _running_limit(self, limit: float) -> float:
        """What running turns may fill of that limit: never more than the labels say."""
        capacity = self.ledger.capacity
        assert capacity is not None
        return min(limit, limits.LABELLED * capacity.total_blocks)

    def growth_blocks(self, requests: int) -> float:
        """What the answers of so many running turns may still add."""
        capacity = self.ledger.capacity
        assert capacity is not None
        tokens = sizing.growth_tokens(requests, self.output)
        # Half a block a turn is lost to rounding besides.
        return capacity.alpha * (tokens / capacity.block_tokens + 0.5 * requests)

    def turn_growth_blocks(self) -> float:
        """What one resident's context will have grown by when it comes back, answer and tool result."""
        capacity = self.ledger.capacity
        assert capacity is not None
        return capacity.alpha * _TURNS_AHEAD * self.turn_growth_tokens / capacity.block_tokens

    def note_turn_growth(self, tokens: int) -> None:
        """A session's context grew by so much from one turn to the next."""
        # A plain mean at first: agents that begin together outgrow the room while it is learned.
        self._grown_turns += 1
        weight = max(_GROWTH_WEIGHT, 1 / self._grown_turns)
        self.turn_growth_tokens += weight * (max(0, tokens) - self.turn_growth_tokens)

    def note_freed(self, blocks: float) -> None:
        """So many blocks have come free; below zero for some of those that have not, after all."""
        if (capacity := self.ledger.capacity) is not None:
            self.release.add(blocks * capacity.block_tokens)

    def headroom_blocks(self, now: float) -> float:
        """Blocks that a new session could take."""
        return self.limit_blocks(now) - self.ledger.used_blocks - self.growth_blocks(len(self.ledger.holds))

    def opening_blocks(self, now: float) -> tuple[float, float, float, float]:
        """The most that anybody may add here while others run, that a newcomer may, that a sub-agent may.

        Last comes until when time alone makes it no more.
        """
        ledger = self.ledger
        limit = self.limit_blocks(now)
        # What others hold is forgotten with reports that stay away; else old reports make it less, and not more.
        until = self.report_at + self._lost_after_s if self.report_at is not None and ledger.foreign_blocks else inf
        growth = self.growth_blocks(len(ledger.holds) + 1)
        taken = ledger.pinned_blocks + ledger.foreign_blocks + growth
        turn = self._running_limit(limit) - taken - ledger.pinned_head_blocks() + _ROUNDING
        if turn < 1.0:
            return turn, turn, turn, until
        growth_each = self.turn_growth_blocks()
        idle = ledger.idle_blocks + ledger.head_blocks - self.leases.most_reclaimable(now, growth_each)
        until = min(until, self.leases.first_looked_at_until)
        session = limit - taken - idle - growth_each * ledger.resident_sessions + _ROUNDING
        return turn, min(turn, session), min(turn, session + AGENT_SLACK * limit), until

    def see_computed(self, now: float) -> None:
        """What has had its time counts as computed; to be said before anything changes that it depends on."""
        self.ledger.uncached_in_flight(now, self.prefill.tokens_per_s)

    def opening_tokens(self, now: float) -> tuple[float, float]:
        """Prompt tokens that may be added to those that are being computed, by a request that has not waited long.

        Then until when time alone makes it no more.
        """
        in_flight = self.ledger.uncached_in_flight(now, self.prefill.tokens_per_s)
        if not in_flight:
            return inf, inf
        computed_at = self.ledger.next_computed_at(self.prefill.tokens_per_s)
        warm_at = self.restarted_at + _SLOW_START_S
        until = min(computed_at, warm_at) if now < warm_at else computed_at
        return self._allowed_prefill(now) - in_flight, until

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
        """Whether a turn of a resident session may start: (A), (D) and the prefill gate. Makes room if it has to.

        Args:
            session: whose turn it is.
            need: blocks that its turn adds.
            uncached_tokens: prompt tokens that would have to be computed.
            now: monotonic seconds.
            head: what it shares with others.
            waited_s: for how long it has waited.
        """
        ledger = self.ledger
        if ledger.capacity is None:
            return True
        limit = self.limit_blocks(now)
        pinned, idle_heads = self._with_one_more(need, head)
        if not self._may_run(pinned, limit, uncached_tokens, now, waited_s):
            return False
        over = pinned + idle_heads + ledger.idle_blocks - ledger.idle_of(session) - limit
        # At once: waits of up to 3 s for running answers to make room cost 3 % of the turns (32 agents, H200).
        if over > 0:
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
        keeps_back: Callable[[], bool] = bool,
    ) -> bool:
        """Whether a session may become resident: (B), (D) and the prefill gate. Takes back leases that are over.

        Args:
            session: whose turn it is; what of it still lies there is not needed twice.
            need: blocks that its turn adds.
            uncached_tokens: prompt tokens that would have to be computed.
            now: monotonic seconds.
            head: what it shares with others.
            waited_s: for how long it has waited.
            slack: share of the limit that may be borrowed from idle sessions, never from running ones.
            keeps_back: asked when it fits whether it had better not start yet.
        """
        ledger = self.ledger
        if ledger.capacity is None:
            return True
        limit = self.limit_blocks(now)
        pinned, idle_heads = self._with_one_more(need, head)
        over = pinned + idle_heads + ledger.idle_blocks - ledger.idle_of(session) - (1.0 + slack) * limit
        if not ledger.holds and need + self.growth_blocks(1) > limit:
            # A whale: it goes alone, and what is larger than the whole cache goes so that the engine's own error comes.
            self._give_away(over, session)
            return True
        if not self._may_run(pinned, limit, uncached_tokens, now, waited_s):
            return False
        # Who stays needs room to grow until it comes back; who goes needs none.
        growth_each = self.turn_growth_blocks()
        over += growth_each * ledger.resident_sessions
        is_short = over > 0 and self.leases.reclaimable_blocks(over, session, now, growth_each) < over
        # When nobody runs and nobody has a lease there is room, whatever the books say of shared heads.
        if is_short and (ledger.holds or self.leases.has_residents_but(session, now)):
            return False
        if keeps_back():
            return False
        if over > 0:
            self._give_away(over, session, growth_each)
        return True

    def fits_control(self, need: float) -> bool:
        """Whether a small one-shot request may pass beside everything else."""
        capacity = self.capacity
        if capacity is None or not self.ledger.holds:
            return True
        is_small = self.control_blocks + need <= _CONTROL_SHARE * capacity.total_blocks
        return is_small and self.ledger.used_blocks + need <= capacity.total_blocks

    def forget_residents(self, now: float) -> int:
        """The engine lost its cache: nobody is resident there any more; says how many sessions had blocks there."""
        self.restarted_at = now
        self.prefixes = PrefixWitness()
        gone = self.ledger.forget_residents()
        for session in gone:
            session.residency = Residency.OUT
        return len(gone)

    def forget_process(self) -> None:
        """The engine is another process: it may have another pace, and what offload kept went with the old one."""
        self.knee.forget()
        self.external = ExternalShare()

    def forget_idle_since_before(self, then: float, now: float) -> int:
        """The engine gave away what was last used before then; says how many sessions that were.

        A large resident whose lease runs was believed safe: that counts as the ghost miss that it would have had.
        """
        gone, was_safe = 0, False
        while (session := next((one for one, _ in self.ledger.idle), None)) is not None and session.idle_since < then:
            is_large = session.context_tokens > limits.GHOST_EXPECTED_TOKENS
            was_safe = was_safe or (is_large and self.leases.keeps_place(session, now))
            self.ledger.evict(session)
            session.residency = Residency.OUT
            gone += 1
        if was_safe:
            self.limit = limits.after_ghost_miss(self.limit, now)
        return gone

    def overfill(self, session: Session, need: float) -> None:
        """A turn goes in without room: book as gone what the engine will give away for it."""
        capacity = self.ledger.capacity
        assert capacity is not None
        over = self.ledger.used_blocks - self.ledger.idle_of(session) + need - capacity.total_blocks
        self._give_away(over, session)

    def _with_one_more(self, need: float, head: int) -> tuple[float, float]:
        """Blocks that running turns hold with one more, what answers may add included; and idle heads."""
        ledger = self.ledger
        heads = ledger.pinned_head_blocks(head)
        growth = self.growth_blocks(len(ledger.holds) + 1)
        return ledger.pinned_blocks + heads + ledger.foreign_blocks + need + growth, ledger.head_blocks - heads

    def _may_run(self, pinned: float, limit: float, uncached_tokens: int, now: float, waited_s: float) -> bool:
        """(A), (D) and the prefill gate. An engine where nobody runs takes anybody."""
        if not self.ledger.holds:
            return True
        if pinned > self._running_limit(limit) or not self.knee.has_room:
            return False
        return self._has_prefill_room(uncached_tokens, now, waited_s)

    def _has_prefill_room(self, uncached_tokens: int, now: float, waited_s: float) -> bool:
        # What is not streamed tells no first token: after the time that its prompt takes, it counts as computed.
        in_flight = self.ledger.uncached_in_flight(now, self.prefill.tokens_per_s)
        allowed = self._allowed_prefill(now)
        if waited_s > LONG_WAIT_S:
            return in_flight <= allowed  # one oversized prompt at a time
        return in_flight == 0 or in_flight + uncached_tokens <= allowed

    def _refill_tokens_per_s(self) -> float:
        return sizing.refill_tokens_per_s(self.prefill.tokens_per_s, self.external.ratio)

    def _allowed_prefill(self, now: float) -> float:
        allowed = max(2.0 * self.batch_tokens, _PREFILL_S * self.prefill.tokens_per_s)
        # Nobody knows which prompts lie outside, so all count for less instead of those tokens for half.
        allowed /= sizing.miss_cost(self.external.ratio)
        return allowed / 2 if now - self.restarted_at < _SLOW_START_S else allowed

    def _give_away(self, over: float, but: Session, growth_each: float = 0.0) -> None:
        """Book as gone what the engine gives away first, until enough is free: it asks nobody whose lease runs."""
        ledger = self.ledger
        while over > 0 and (session := next((one for one, _ in ledger.idle if one is not but), None)) is not None:
            heads = ledger.head_blocks
            freed = ledger.evict(session) + heads - ledger.head_blocks
            self.note_freed(freed)
            over -= freed
            over -= growth_each if session.residency is Residency.IN else 0.0
            session.residency = Residency.OUT

    def __repr__(self) -> str:
        return f"<EngineRoom theta {self.limit.theta:.2f}, {self.ledger!r}>"
