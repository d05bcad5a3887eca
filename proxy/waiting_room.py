"""Where requests wait for the gate: one future a waiting request, one timer for all, and nothing else that is asyncio.

Called by dispatch. The gate decides; this wakes who may start, and answers who has waited long enough. A request that
has nowhere to go any more has a timer of its own.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.core.errors import Refusal
from proxy.core.exchange import Exchange
from proxy.core.outcomes import Outcome
from proxy.core.ports import Clock
from proxy.core.requests import RequestView
from proxy.core.turns import Rank, Turn, TurnEnd
from proxy.dialects.overload import overload_status
from proxy.gate import Gate, Placement
from proxy.policy.queueing import retry_after_s
from proxy.state.wait_queue import Waiting

_LEASE_SLACK_S: Final = 0.02
_QUEUES: Final = {rank: rank.name.lower() for rank in Rank}
_TICKET_RETRY_S: Final = 1
"""After a full hold the ticket keeps the place: come back at once."""


class _SentAway(Exception):  # noqa: N818 - an answer, on its way to whoever waits for the future
    """Its request has left the queue and is to be refused."""

    def __init__(self, message: str, retry_s: int) -> None:
        super().__init__(message)
        self.message = message
        self.retry_s = retry_s


@dataclass(slots=True, eq=False)
class _Seat:
    """One request that waits.

    Attributes:
        candidates: says where it may go now; raises the refusal when that is nowhere.
        stranded: the timer that ends its wait, while it has nowhere to go.
    """

    waiting: Waiting
    candidates: Callable[[], Sequence[str]]
    future: "asyncio.Future[Placement]"
    stranded: asyncio.TimerHandle | None = None

    def is_not_stranded(self) -> None:
        """It is gone, or may go somewhere again."""
        if self.stranded is not None:
            self.stranded.cancel()
            self.stranded = None


class WaitingRoom:
    """Requests that are not placed yet.

    Args:
        gate: who decides.
        clock: monotonic seconds.
        is_up: whether a backend may take work now.
        spread: chance in [0, 1), so that refused clients do not come back together.
        down_grace_s: how long requests go on waiting when every backend that they may go to is down.
        overload_status: what who is refused for want of room is told, where the route leaves a choice.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        clock: Clock,
        is_up: Callable[[str], bool],
        spread: Callable[[], float],
        down_grace_s: float,
        overload_status: int = 429,
    ) -> None:
        self.gate = gate
        self._clock = clock
        self._is_up = is_up
        self._spread = spread
        self._down_grace_s = down_grace_s
        self._overload_status = overload_status
        self._seats: dict[int, _Seat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    async def admit(
        self, view: RequestView, turn: Turn, candidates: Callable[[], Sequence[str]], exchange: Exchange
    ) -> Placement:
        """Wait until a backend has room.

        Args:
            view: the request.
            turn: what admission needs to know of it.
            candidates: says which backends may take it now, by name; asked anew when one goes up or down. Raises the
                refusal when there is none.
            exchange: the running record.

        Raises:
            Refusal: the queue is full, or became so of those who have waited longer; the hold limit is reached; a
                newer copy of the same turn took its place; or every backend is down, and stays so.
        """
        names = candidates()
        now = self._clock()
        # A resident or a lone newcomer starts here, without a future and without a task switch.
        waiting, placement, was_tried = self.gate.admit(
            turn,
            names,
            now,
            open_names=names,
            model=exchange.model,
            body_bytes=len(view.body),
            patience_s=turn.patience_s,
        )
        if waiting.replaced is not None:
            # Whoever still listens to the older copy is told.
            message = "The same request was sent again and waits in this one's place."
            self._send_away(waiting.replaced, _SentAway(message, _TICKET_RETRY_S))
        exchange.queue = _QUEUES[waiting.rank]
        seat: _Seat | None = None
        try:
            if not was_tried:
                placement = self._wake(self.gate.pump(now, names, arrival=waiting), names, now, arrival=waiting)
            self._arm(now)
            if placement is None:
                seat = self._seats[waiting.id] = _Seat(waiting, candidates, asyncio.get_running_loop().create_future())
                if not (waiting.has_ticket or waiting.is_side or waiting.rank is Rank.CONTROL):
                    # Claude Code bears one refusal in a stream that was opened early, but gives up at the third in a
                    # row. Whoever comes back is known by its ticket, and told by a status; some calls never get one.
                    exchange.waits_since = now
                self._send_surplus_away(waiting, now)
                # What an earlier attempt of this request waited is off its limit: the client's patience is one.
                async with asyncio.timeout(waiting.deadline - now - (exchange.queue_wait_s or 0.0)):
                    placement = await seat.future
        except TimeoutError:
            self._give_up(waiting, seat, has_left=False)
            held_s = self._clock() - waiting.arrived_at
            sleeps = all(self.gate.rooms[name].is_asleep for name in waiting.candidates)
            why = "every engine for it sleeps" if sleeps else "the engines' KV cache is full of other sessions"
            message = (
                f"No room came free within {held_s:.0f} s: {why}. This one keeps its place in the queue; try again now."
            )
            raise self._overloaded(view, message, _TICKET_RETRY_S) from None
        except _SentAway as sent:
            raise self._overloaded(view, sent.message, sent.retry_s) from None
        except Refusal:
            raise  # it had nowhere to go, and has left the queue already
        except BaseException:
            if seat is None and placement is not None:
                # It has its room already: whatever fails from then on, that goes back.
                self.gate.end(placement, TurnEnd(), self._clock())
            self._give_up(waiting, seat, has_left=True)
            raise
        finally:
            if seat is not None:
                del self._seats[waiting.id]
                seat.is_not_stranded()
                exchange.waits_since = None
            _note_wait(exchange, waiting, self._clock())
        exchange.admission = placement.admission
        exchange.prefix = placement.prefix
        exchange.expected_tokens = placement.expected_tokens
        exchange.estimated_tokens = waiting.prompt_tokens
        exchange.would_wait = placement.would_wait
        exchange.prefix_break = waiting.prefix_break
        return placement

    def end(self, placement: Placement, end: TurnEnd, *, was_not_served: bool = False) -> None:
        """A placed turn has ended; its room may let others start.

        Args:
            placement: the turn.
            end: how it ended.
            was_not_served: its attempt failed before anything was done: it may be tried again, in its place in line.
        """
        now = self._clock()
        if was_not_served:
            self.gate.keep_place(placement.waiting, now, has_left=True)
        self.gate.end(placement, end, now)
        self.pump((placement.backend,))

    def pump(self, only: Iterable[str] | None = None) -> None:
        """Let start who may start.

        Args:
            only: backends whose room has changed; None for all.
        """
        if self._timer is None and not self.gate.queue.entries:
            return
        now = self._clock()
        names = [name for name in (self.gate.rooms if only is None else only) if self._is_up(name)]
        self._wake(self.gate.pump(now, names), names, now)
        self._arm(now)

    def _wake(
        self, placed: list[Placement], names: Sequence[str], now: float, *, arrival: Waiting | None = None
    ) -> Placement | None:
        """Wake those that were placed.

        Args:
            placed: the placements.
            names: backends that were looked at.
            now: monotonic seconds.
            arrival: this one has no seat yet.

        Returns:
            The arrival's placement, if it has one now.
        """
        its_own: Placement | None = None
        while placed:
            has_given_back = False
            for placement in placed:
                if placement.waiting is arrival:
                    its_own = placement
                    continue
                seat = self._seats.get(placement.waiting.id)
                if seat is None or seat.future.done():
                    # Its client left in this very moment; its room may let somebody else start.
                    self.gate.end(placement, TurnEnd(), now)
                    has_given_back = True
                else:
                    seat.future.set_result(placement)
            placed = self.gate.pump(now, names) if has_given_back else []
        return its_own

    def follow_health(self) -> None:
        """A backend went up or down: look again where those that wait may go."""
        for seat in self._seats.values():
            if seat.future.done():
                continue
            try:
                names = seat.candidates()
            except Refusal as refusal:
                # The candidates stay what they were: the first of them to come back is used.
                if seat.stranded is None:
                    loop = asyncio.get_running_loop()
                    seat.stranded = loop.call_later(self._down_grace_s, self._strand, seat.waiting, refusal)
            else:
                seat.is_not_stranded()
                self.gate.reroute(seat.waiting, names)
        self.pump()

    def _strand(self, waiting: Waiting, refusal: Refusal) -> None:
        """Every backend that it may go to has been down for too long."""
        if self.gate.give_up(waiting, self._clock(), keeps_ticket=True):
            self._send_away(waiting, refusal)
            self.pump()

    def _give_up(self, waiting: Waiting, seat: _Seat | None, *, has_left: bool) -> None:
        """Leave the queue with a ticket; room that was just given goes back."""
        now = self._clock()
        if self.gate.give_up(waiting, now, keeps_ticket=True, has_left=has_left):
            self.pump(waiting.candidates)
            return
        if seat is None:
            return
        future = seat.future
        is_sent_away = future.done() and not future.cancelled() and future.exception() is not None
        if not is_sent_away:
            # Its room was given in this very moment, and has gone back already if the future was cancelled first.
            self.gate.keep_place(waiting, now, has_left=has_left)
            if not future.cancelled():
                self.end(future.result(), TurnEnd())

    def _send_surplus_away(self, arrival: Waiting, now: float) -> None:
        """Keep the queue within its bounds after an arrival that has to wait.

        Who waited already leaves with a ticket; the arrival keeps the one that it came with, if it had one.
        """
        for leaver in self.gate.queue.surplus(arrival):
            self.gate.give_up(leaver, now, keeps_ticket=leaver is not arrival or arrival.has_ticket)
            retry_s = retry_after_s(self.gate.expected_wait_s(now), self._spread())
            message = f"As many requests wait for room as may. Try again in {retry_s} s."
            self._send_away(leaver, _SentAway(message, retry_s))

    def _send_away(self, waiting: Waiting, why: _SentAway | Refusal) -> None:
        """Wake a request that has left the queue, to be refused."""
        seat = self._seats.get(waiting.id)
        if seat is not None and not seat.future.done():
            seat.future.set_exception(why)

    def _arm(self, now: float) -> None:
        """Look again when a lease or somebody's patience ends, though nothing else happens."""
        if self._timer is None and not self.gate.queue.entries:
            return
        at = self.gate.next_event_at(now)
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return  # what it was set for may be over just now, and not have been looked at on every backend
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            delay_s = max(0.0, at - now) + _LEASE_SLACK_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overloaded(self, view: RequestView, message: str, retry_s: int) -> Refusal:
        status = overload_status(view.route, self._overload_status)
        return Refusal(Outcome.REFUSED_OVERLOADED, status, message, retry_after_s=retry_s)


def _note_wait(exchange: Exchange, waiting: Waiting, now: float) -> None:
    """The wait is over. A second attempt waits again; both waits count."""
    exchange.queue_wait_s = (exchange.queue_wait_s or 0.0) + now - waiting.arrived_at
    if (herd_wait_s := waiting.herd_wait_s(now)) is not None:
        exchange.herd_wait_s = (exchange.herd_wait_s or 0.0) + herd_wait_s
