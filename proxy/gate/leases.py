"""Whose place is kept: leases of sessions between two turns, and what could be taken back from those whose is over.

An engine gives away whatever was released longest ago, so what can be had ends at the first lease that still runs.
Owned by one backend's room, which says how fast lost prefixes come back; changes nothing but which leases were seen to
be over.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import Final

from proxy.core.turns import StopReason
from proxy.policy import sizing
from proxy.state.calibration import ReturnGaps, ReturnOdds
from proxy.state.kv_ledger import KvLedger
from proxy.state.sessions import Residency, Session

_LOOK_AGAIN_S: Final = 1.0
"""Leases change a little with what is learned; one that runs is looked at as often as reports come."""
_NEAR: Final = 64
"""So many idle sessions are looked at for a bound; where the first that came back lies behind them, it is loose."""


class Leases:
    """The leases on one backend.

    Args:
        ledger: who rests there.
        gaps: how long sessions stay away, learned over all backends.
        odds: whether they come back at all.
        refill_tokens_per_s: how fast prefixes come back that were lost there.
    """

    def __init__(
        self, ledger: KvLedger, gaps: ReturnGaps, odds: ReturnOdds, refill_tokens_per_s: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._gaps = gaps
        self._odds = odds
        self._refill_tokens_per_s = refill_tokens_per_s
        self._kept: Session | None = None
        self._kept_until = 0.0
        self._front = 0.0
        self._front_seen: tuple[int, int, float] | None = None
        self._end: float | None = None
        self._end_seen: tuple[int, float | None] | None = None

    @property
    def first_looked_at_until(self) -> float:
        """Until when nothing has to be looked at anew because time passes; forever where nobody is kept."""
        return inf if self._ledger.idle.first_kept() is None else self._kept_until

    def next_end(self, now: float, report_at: float | None) -> float | None:
        """When the next lease that still runs is over, so that somebody may look again.

        Args:
            now: monotonic seconds.
            report_at: when the engine last reported.
        """
        # Leases change a little with what is learned; reports come often enough to look again for that.
        seen = (self._ledger.idle.changes, report_at)
        if seen != self._end_seen or (self._end is not None and self._end <= now):
            self._let_go(now)
            self._end_seen, self._end = seen, self._find_end(now)
        return self._end

    def _find_end(self, now: float) -> float | None:
        kept = (one for one in self._ledger.idle.kept() if one.residency is Residency.IN)
        return next((end for one in kept if (end := one.idle_since + self.lease_s(one)) > now), None)

    def _let_go(self, now: float) -> None:
        """See which leases are over, as far as the first that is not."""
        idle = self._ledger.idle
        while (first := idle.first_kept()) is not None:
            if first is self._kept and now <= self._kept_until and first.residency is Residency.IN:
                return
            if not self.keeps_place(first, now):
                self._ledger.let_go()
                continue
            self._kept, self._kept_until = first, min(first.idle_since + self.lease_s(first), now + _LOOK_AGAIN_S)
            return

    def lease_s(self, session: Session) -> float:
        """For how long a session keeps its place after a turn."""
        capacity = self._ledger.capacity
        assert capacity is not None
        if session.turns == 1 and self._odds.is_one_shot(session.is_named):
            return 0.0
        # Who has been here once and does not name its sessions may be anybody: it gets what an ended task gets.
        is_stranger = session.turns == 1 and not session.is_named
        stop = StopReason.END_TURN if is_stranger else session.last_stop
        return sizing.lease_s(stop, capacity.total_tokens, self._refill_tokens_per_s(), self._gaps.usual_s(stop))

    def has_residents_but(self, session: Session, now: float) -> bool:
        """Whether another session than this one keeps its place here."""
        self._let_go(now)
        idle = self._ledger.idle
        kept = (self.keeps_place(one, now) for one in idle.kept() if one is not session)
        return idle.has_returned(session) or any(kept)

    def keeps_place(self, idle: Session, now: float) -> bool:
        """Whether a session between two turns keeps its place still."""
        # A resident whose next turn is here, waiting or running, has come back: it does not lose its place by that.
        is_back = idle.has_come_back
        return idle.residency is Residency.IN and (is_back or now - idle.idle_since <= self.lease_s(idle))

    def reclaimable_blocks(self, enough: float, but: Session, now: float, growth_each: float = 0.0) -> float:
        """Blocks that the engine would give away before the first lease that still runs, and what was kept for them.

        More than enough may be there than is told.
        """
        self._let_go(now)
        ledger, idle = self._ledger, self._ledger.idle
        if idle.has_returned(but):
            return self._walk(ledger.freed_by(one for one, _ in idle if one is not but), enough, now, growth_each)
        blocks = ledger.over_blocks(but, growth_each)
        if blocks >= enough or idle.first_kept() is not but:
            return blocks
        behind = ledger.freed_by(idle.kept(skip=1), after_over=True)
        return blocks + self._walk(behind, enough - blocks, now, growth_each)

    def _walk(self, freed: Iterable[tuple[Session, float]], enough: float, now: float, growth_each: float) -> float:
        """What comes free up to the first that keeps its place."""
        blocks = 0.0
        for session, held in freed:
            if blocks >= enough or self.keeps_place(session, now):
                break
            blocks += held + (growth_each if session.residency is Residency.IN else 0.0)
        return blocks

    def most_reclaimable(self, now: float, growth_each: float) -> float:
        """A bound of the same for somebody who has nothing here; asked often, so it walks seldom and not far."""
        self._let_go(now)
        ledger, idle = self._ledger, self._ledger.idle
        if not idle.has_returned():
            return ledger.over_blocks(None, growth_each)
        seen = (idle.changes, ledger.head_changes, growth_each)
        if seen != self._front_seen:
            near = [one for one, _ in islice(idle, _NEAR)]
            kept = next((at for at, one in enumerate(near) if self.keeps_place(one, now)), None)
            if kept is None:
                self._front = ledger.over_blocks(None, growth_each)
            else:
                self._front = self._walk(ledger.freed_by(near[:kept]), inf, now, growth_each)
            self._front_seen = seen
        return self._front

    def __repr__(self) -> str:
        return f"<Leases until {self._end}>"
