"""What there is to know of a request when it comes: whose it is, how large, which class, since when it waits.

Called by the gate before it tries the request or lets it wait; the queue does not have it yet.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Final

from proxy.core.turns import Rank, Turn
from proxy.gate import tickets
from proxy.gate.bookings import Bookings
from proxy.gate.fitting import Fitting
from proxy.gate.lessons import Lessons
from proxy.gate.lineage import Kin, Lineage, why_broken
from proxy.gate.openings import Openings
from proxy.policy import queueing
from proxy.state.wait_queue import Waiting, WaitQueue

_CONTROL: Final = Rank.CONTROL
_RESIDENT: Final = Rank.RESIDENT
_SESSION: Final = Rank.SESSION
_LEAST_LOSS_TOKENS: Final = 1_024
"""What nobody feels is no break: a title that was asked for before an agent's first turn is not the prefix of that."""


class Arrivals:
    """Makes of a turn a request that may be tried, and teaches what its coming teaches.

    Args:
        lineage: whose turns they are.
        queue: where copies of a turn may wait.
        lessons: for sizes and classes.
        fitting: for what no engine can hold.
        bookings: for sessions that come back, or are forgotten.
        openings: to be looked at anew where such a session lives.
        counters: what happened, by name.
        max_hold_s: the longest wait.
    """

    def __init__(
        self,
        *,
        lineage: Lineage,
        queue: WaitQueue,
        lessons: Lessons,
        fitting: Fitting,
        bookings: Bookings,
        openings: Openings,
        counters: Counter[str],
        max_hold_s: float,
    ) -> None:
        self._lineage = lineage
        self._queue = queue
        self._lessons = lessons
        self._fitting = fitting
        self._bookings = bookings
        self._openings = openings
        self._counters = counters
        self._max_hold_s = max_hold_s
        self._ids = count(1)

    def meet(
        self,
        turn: Turn,
        candidates: Sequence[str],
        now: float,
        *,
        model: str,
        body_bytes: int,
        patience_s: float | None,
    ) -> Waiting:
        """The request; an older copy of it that it replaces has left the queue. See `Gate.arrive` for the arguments."""
        session, forgotten, kin = self._lineage.find(turn, now)
        for gone in forgotten:
            self._openings.forget(gone.home)
            self._bookings.leave_home(gone)
        if session.stamp is not None and now > session.stamp_until:
            session.stamp = None
        if session.turns and not session.is_busy and session.stamp is None:
            self._lessons.gaps.on_return(session.last_stop, now - session.idle_since)
            if session.turns == 1:
                self._lessons.odds.on_return(session.is_named)
        relative = kin.relative if kin is not None else None
        prompt_tokens = self._lessons.estimate(turn, relative or session, model)
        waiting = Waiting(
            id=next(self._ids),
            turn=turn,
            session=session,
            rank=_SESSION,
            candidates=tuple(candidates),
            stamp=now,
            arrived_at=now,
            deadline=now + queueing.hold_limit_s(patience_s, self._max_hold_s),
            prompt_tokens=prompt_tokens,
            model=model,
            body_bytes=body_bytes,
            fairness_key=turn.session.credential,
            is_side=self._lessons.is_side(turn, session, prompt_tokens),
        )
        if kin is not None and (kin.relative is not None or session.chain_length):
            self._note_kin(waiting, kin)
        waiting.is_hopeless = self._fitting.is_hopeless(waiting)
        # Its client needs the engine's own error to make its context shorter; it takes nobody's place for that.
        waiting.rank = _CONTROL if waiting.is_hopeless else self._lessons.rank(waiting)
        if tickets.redeem(waiting, now):
            self._counters["tickets_redeemed"] += 1
        older = self._queue.twin_of(turn)
        if older is not None:
            waiting.stamp = min(waiting.stamp, older.stamp)
            if self._queue.takes_over(turn, now):
                # Its client gave up on it and asks again: the copy takes its place.
                self._queue.remove(older)
                self._openings.forget(session.home)
                waiting.replaced = older
                self._counters["resends"] += 1
        self._lessons.lift(waiting.fairness_key, self._queue.keys)
        if waiting.rank is _RESIDENT:
            self._openings.forget(session.home)
            self._bookings.come_back(session)
        return waiting

    def _note_kin(self, waiting: Waiting, kin: Kin) -> None:
        """It is not simply its session's next turn: what it shares with whom, and whether something broke."""
        turn, session, relative = waiting.turn, waiting.session, kin.relative
        if relative is not None:
            waiting.relative = relative
            waiting.shared_tokens = self._lessons.shared_tokens(turn, relative, kin.depth, waiting.model)
            self._counters["forks"] += relative is not session and not session.turns
        depth = kin.depth if relative is session else 0
        if not session.chain_length or waiting.is_side or depth == len(turn.chain) > 0:
            return
        kept = waiting.shared_tokens
        if turn.head == session.head:
            kept = max(kept, session.head_tokens)
        if min(waiting.prompt_tokens, session.context_tokens) - kept >= _LEAST_LOSS_TOKENS:
            waiting.prefix_break = why_broken(turn, session, depth)
            self._counters[f"prefix_breaks_{waiting.prefix_break}"] += 1
