"""In which order a request is tried on backends: home while that is worth it, else where it would be answered soonest.

Called by the gate for what is new, out, or passes beside the others; a resident's turn goes home and is not asked
about. What a backend costs is worked out when something has happened there and not for each request, so that a
thousand of them can be looked at. The rules are in `policy.routing`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from proxy.gate.engine_room import EngineRoom
from proxy.gate.fitting import Fitting
from proxy.gate.herd import Herd
from proxy.gate.openings import Openings
from proxy.policy import routing, sizing
from proxy.state.wait_queue import Waiting

_Test = Callable[[str], bool]


class _Price:
    """What one backend costs whoever comes, kept until something happens there.

    Attributes:
        busy_s: what is ahead of a newcomer, and how much its turns would slow each other down.
        crowding: share of its blocks that is in use, by what it was told to take.
        token_s: seconds for each prompt token that does not lie there.
        seed: of its name.
        sessions: that run there, or whose blocks lie there.
        share: what it was told to take, by its size.
        weight: its share of newcomers among equals: tokens that it holds, by what it was told to take.
    """

    __slots__ = (
        "_seen",
        "busy_s",
        "crowding",
        "is_inert",
        "ledger",
        "room",
        "seed",
        "sessions",
        "share",
        "token_s",
        "weight",
    )

    def __init__(self, name: str, room: EngineRoom, weight: float) -> None:
        self.room = room
        self.ledger = room.ledger
        self.seed = routing.seed_of(name)
        self.share = weight
        self.weight = weight * routing.UNKNOWN_TOKENS
        self.sessions = 0
        self.busy_s = self.crowding = self.token_s = 0.0
        self.is_inert = False
        self._seen: tuple[int, float | None, int] = (-1, None, -1)

    def look(self, now: float) -> bool:
        """Work it out anew, unless nothing has happened; says whether a prompt counts as computed by that."""
        room, ledger = self.room, self.ledger
        seen = (ledger.changes, room.report_at, room.inflight)
        if seen == self._seen and not ledger.uncached_tokens:
            return False
        self._seen = seen
        rate = room.prefill.tokens_per_s
        self.token_s = sizing.miss_cost(room.external.ratio) / rate
        self.is_inert = room.prefixes.is_inert
        before = ledger.uncached_tokens
        ahead = ledger.uncached_in_flight(now, rate)
        self.busy_s = routing.busy_s(ahead, rate, room.inflight)
        capacity = ledger.capacity
        self.sessions = len(ledger.holds) + len(ledger.idle)
        if capacity is not None:
            self.crowding = ledger.used_blocks / (capacity.total_blocks * self.share)
            self.weight = self.share * capacity.total_tokens
        return ahead != before


class Homing:
    """Looks at rooms with one request in hand.

    Args:
        rooms: the backends' rooms by name.
        fitting: what of a request lies where.
        openings: who certainly fits nowhere.
        herd: who is kept for a backend.
        weights: how much more than its size says a backend is to take; 1 for who is not named.
    """

    def __init__(
        self,
        rooms: Mapping[str, EngineRoom],
        fitting: Fitting,
        openings: Openings,
        herd: Herd,
        weights: Mapping[str, float],
    ) -> None:
        self._rooms = rooms
        self._fitting = fitting
        self._openings = openings
        self._herd = herd
        self._weights = weights
        # Rooms that come later weigh what another one of their backend does.
        self._has_unequal = len({weights.get(name, 1.0) for name in rooms}) > 1
        self._prices: dict[str, _Price] = {}

    def may_leave(self, home: str) -> bool:
        """Whether not even a resident loses anything by going elsewhere."""
        return self._rooms[home].prefixes.is_inert

    def order(
        self, waiting: Waiting, names: Collection[str], now: float, *, fits_beside: bool = False
    ) -> Iterable[str]:
        """Which of these to try, best first; none where it is better to wait.

        Args:
            waiting: the request.
            names: those that take work now, whether or not it may go to them.
            now: monotonic seconds.
            fits_beside: it may pass where a session may not.
        """
        if fits_beside or len(names) > 1:
            usable = [name for name in waiting.candidates if name in names]
        else:
            usable = self._openings.usable(waiting, names)
        if waiting.kept_for is None and len(waiting.candidates) == 1:
            return usable  # nothing is to be chosen
        return () if self._herd.place_of(waiting, now) is not None else self._order(waiting, usable, now, fits_beside)

    def _order(self, waiting: Waiting, usable: list[str], now: float, fits_beside: bool) -> Iterator[str]:
        if waiting.kept_for in usable:
            yield waiting.kept_for
            usable.remove(waiting.kept_for)
        # Only who is about to be tried is looked at more closely: the first one most often does.
        may_fit = (lambda _: True) if fits_beside else partial(self._openings.may_fit, waiting)
        for name in self._ranked(waiting, usable, now, may_fit):
            yield name
            if waiting.kept_for == name and self._herd.place_of(waiting, now) is not None:
                return

    def _ranked(self, waiting: Waiting, names: list[str], now: float, may_fit: _Test) -> Iterable[str]:
        home = waiting.session.home
        if home is not None and home in waiting.candidates:
            if self._rooms[home].ledger.capacity is None:
                return self._by_load(waiting, names, home, may_fit)
            if self._fitting.own_tokens(waiting, home):
                return self._from_home(waiting, names, home, now, may_fit)
        if len(names) < 2:
            return names
        heaviest = max(self._weights.get(name, 1.0) for name in names) if self._has_unequal else 0.0
        return self._cheapest(waiting, self._costs(waiting, names, now, heaviest), may_fit)

    def _by_load(self, waiting: Waiting, names: list[str], home: str, may_fit: _Test) -> Iterator[str]:
        """Nobody knows what fits at home: it goes there unless that has much more to do than the others."""
        loads = {name: self._rooms[name].inflight / self._weights.get(name, 1.0) for name in waiting.candidates}
        is_busy = routing.is_too_busy(loads[home], sum(loads.values()) / len(loads))
        if home in names and not is_busy:
            yield home
        yield from self._cheapest(waiting, {name: loads[name] for name in names if name != home}, may_fit)
        if home in names and is_busy:
            yield home

    def _from_home(self, waiting: Waiting, names: list[str], home: str, now: float, may_fit: _Test) -> Iterator[str]:
        """Something of it lies at home: others have to be better by far, or it has to have waited."""
        room = self._rooms[home]
        refill_s = waiting.prompt_tokens / sizing.refill_tokens_per_s(room.prefill.tokens_per_s, room.external.ratio)
        gain_s = routing.gain_to_move_s(refill_s)
        others = [name for name in names if name != home]
        home_s = self._cost_s(waiting, home, now)
        share = self._price(home).share
        if home in names:
            if home_s > gain_s and others:
                costs = self._costs(waiting, others, now, share)
                better = {name: cost for name, cost in costs.items() if home_s - cost > gain_s}
                yield from self._cheapest(waiting, better, may_fit)
                others = [name for name in others if name not in better]
            yield home
        home_s += self._wait_s(waiting, home, now)
        has_waited = routing.has_waited_enough(now - waiting.arrived_at, refill_s)
        if not others or (home_s <= gain_s and not has_waited):
            return
        costs = self._costs(waiting, others, now, share)
        worth = {
            name: cost
            for name, cost in costs.items()
            if home_s - cost > gain_s or (has_waited and self._has_room(waiting, name, now))
        }
        yield from self._cheapest(waiting, worth, may_fit)

    def _costs(self, waiting: Waiting, names: Iterable[str], now: float, share: float) -> dict[str, float]:
        """Seconds that a request would cost on each of these, where nothing of its own lies.

        What others do there counts for more on those that were told to take less than `share`. With the seconds as they
        are a burst would be spread evenly, whatever the weights: only what fills caches would be weighed.
        """
        head, tokens = waiting.turn.head, waiting.prompt_tokens
        crowding_tokens = routing.CROWDING * tokens
        prices, herd = self._prices, self._herd
        costs: dict[str, float] = {}
        with_head: list[str] = []
        sessions, weight = 1, 0.0
        for name in names:
            price = prices.get(name) or self._price(name)
            if price.look(now):
                self._openings.changed.add(name)
            busy_s = price.busy_s if price.share >= share else price.busy_s * routing.yields(price.share, share)
            costs[name] = busy_s + price.token_s * (tokens + crowding_tokens * price.crowding)
            sessions += price.sessions
            weight += price.weight
            if head and not price.is_inert and price.ledger.knows_head(head):
                with_head.append(name)
        head_tokens = self._fitting.head_tokens(waiting) if with_head else 0
        for name in with_head:
            price = prices[name]
            if routing.may_gather(price.sessions + 1, sessions * price.weight / weight):
                costs[name] -= price.token_s * head_tokens
        kin_home = waiting.relative_home
        if kin_home is not None and kin_home in costs:
            # What it shares with a relative beyond the head is shared with few: it may draw in any case.
            beyond = self._fitting.own_tokens(waiting, kin_home) - self._fitting.head_tokens(waiting)
            costs[kin_home] -= prices[kin_home].token_s * max(0, beyond)
        if herd.is_keeping(now):
            for name in costs:
                price = prices[name]
                promised_s = herd.promised_tokens(name, head) * price.token_s
                costs[name] += promised_s * routing.yields(price.share, share)
        return costs

    def _cost_s(self, waiting: Waiting, name: str, now: float) -> float:
        """The same for one where something may lie, and whatever is crowded there."""
        price = self._price(name)
        if price.look(now):
            self._openings.changed.add(name)
        return price.busy_s + price.token_s * (waiting.prompt_tokens - self._fitting.hit_tokens(waiting, name))

    def _cheapest(self, waiting: Waiting, costs: dict[str, float], may_fit: _Test) -> Iterator[str]:
        """The cheapest first; each session has its own order of equals."""
        if not costs:
            return
        key = waiting.session.key
        root = routing.root_of(key.credential, key.session)

        def affinity(name: str) -> float:
            price = self._price(name)
            return -routing.affinity(root, price.seed, price.weight)

        least = min(costs.values())
        equals = [name for name, cost in costs.items() if cost == least]
        first = min(equals, key=affinity) if len(equals) > 1 else equals[0]
        if may_fit(first):
            yield first
        rest = [name for name in costs if name != first and may_fit(name)]
        yield from sorted(rest, key=lambda name: (costs[name], affinity(name)))

    def _price(self, name: str) -> _Price:
        price = self._prices.get(name)
        if price is None:
            price = self._prices[name] = _Price(name, self._rooms[name], self._weights.get(name, 1.0))
        return price

    def _wait_s(self, waiting: Waiting, name: str, now: float) -> float:
        """Until it would fit there, from what it lacks and how fast room comes free."""
        room = self._rooms[name]
        capacity = room.ledger.capacity
        assert capacity is not None
        short = self._fitting.need_blocks(waiting, name) - room.headroom_blocks(now)
        return routing.wait_s(short * capacity.block_tokens, room.release.look(now), capacity.total_tokens)

    def _has_room(self, waiting: Waiting, name: str, now: float) -> bool:
        """Whether it fits there and pushes nobody out."""
        room = self._rooms[name]
        return room.ledger.capacity is None or self._fitting.need_blocks(waiting, name) <= room.headroom_blocks(now)
