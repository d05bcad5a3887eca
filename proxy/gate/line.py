"""Those that wait for a place, in the order in which they are tried, without those that certainly fit nowhere.

Hundreds wait while most rooms are full, so what an event costs is how many of them it touches: those whose size the
rooms could take, and those at home there. The order is the one in which all of them would be tried, each once; who is
left out would be tried in vain. Changes nothing.
"""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop
from math import inf
from typing import Final

from proxy.core.turns import Rank
from proxy.gate.lessons import Lessons
from proxy.gate.openings import Openings, Widest
from proxy.state.wait_queue import Sized, Waiting, WaitQueue

_Place = tuple[float, float, int]
"""Service of its key, score, number."""
_FIRST: Final[_Place] = (-inf, -inf, -1)


class Line:
    """One look along the queue after another.

    Args:
        queue: who waits.
        openings: how much could enter where.
        lessons: which key comes first, and who of it.
    """

    def __init__(self, queue: WaitQueue, openings: Openings, lessons: Lessons) -> None:
        self._queue = queue
        self._openings = openings
        self._lessons = lessons

    def in_order(self, rank: Rank, names: Collection[str], now: float, *, but: Waiting | None) -> Iterator[Waiting]:
        """Each of a rank that could fit on one of some backends when it is its turn: least served key first.

        Who takes it places it or not before asking for the next; whoever was placed has left the queue.

        Args:
            rank: whose turn it is.
            names: backends that may be entered.
            now: monotonic seconds.
            but: has been tried already.
        """
        if not names:
            return
        queue, openings = self._queue, self._openings
        widest, last = openings.widest(names), _FIRST
        at_home = queue.at_home(rank, names)
        entries = self._worth_a_look(rank, widest, at_home)
        while True:
            for place, waiting in self._behind(last, entries, now):
                left = queue.entries
                if waiting is not but:
                    yield waiting
                if queue.entries < left:
                    last = place
                    break
            else:
                return
            before, widest = widest, openings.widest(names)
            # Most often there is less room now, and whoever was not worth a look is none the more so. But other turns
            # of a session that is in now may follow it; then the order tells who is still to come.
            if widest.is_within(before) and not waiting.session.waiting:
                entries = openings.worth_a_look(entries, widest, at_home)
            else:
                at_home = queue.at_home(rank, names)
                entries = self._worth_a_look(rank, widest, at_home)

    def _worth_a_look(self, rank: Rank, widest: Widest, at_home: dict[int, Sized]) -> list[Sized]:
        longest = widest.longest_agent_tokens
        entries = self._openings.worth_a_look(self._queue.up_to(rank, longest), widest, at_home)
        return entries + [one for one in at_home.values() if one.tokens > longest]

    def _behind(self, last: _Place, entries: list[Sized], now: float) -> Iterator[tuple[_Place, Waiting]]:
        """Those that come after the last one that was placed, in order. Nobody is scored before its key's turn."""
        by_key: dict[str, list[Waiting]] = {}
        for one in entries:
            waiting = one[2]
            by_key.setdefault(waiting.fairness_key, []).append(waiting)
        by_service: dict[float, list[Waiting]] = {}
        for key, of_key in by_key.items():
            by_service.setdefault(self._lessons.served(key), []).extend(of_key)
        score = self._lessons.score
        for service in sorted(by_service):
            if service < last[0]:
                continue
            line = [((service, score(one, now), one.number), one) for one in by_service[service]]
            line = [one for one in line if one[0] > last]
            heapify(line)
            while line:
                yield heappop(line)
