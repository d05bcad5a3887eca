"""Rules by which a proxy lets turns through, behind one interface: none, fixed caps, gauges, and two from papers.

Driven by the closed loop in virtual time; the product's own gate is `gate_policy`. Each is written from the rule's
description (admission brief 1.6 and 1.7), and is told the true size of every prompt.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from proxy.sim.engine import Engine
from proxy.sim.report import EngineReport
from proxy.sim.workloads import OpenTurn, Thread


class Policy(ABC):
    """Decides when a turn goes to which backend. Turns that it does not let through wait in `waiting`, oldest first."""

    def __init__(self, name: str, backends: int) -> None:
        self.name = name
        self.backends = backends
        self.waiting: dict[int, OpenTurn] = {}
        self.inflight = [0] * backends
        self._homes: dict[str, int] = {}
        self._live = [0] * backends

    def arrive(self, turn: OpenTurn, now: float) -> bool:  # noqa: ARG002
        """A client asks; False refuses at once."""
        self.waiting[turn.id] = turn
        return True

    def start(self, now: float) -> list[OpenTurn]:
        """The turns that start now; each has its backend set."""
        started = list(self._choose(now))
        for turn in started:
            del self.waiting[turn.id]
            self.inflight[turn.backend] += 1
        return started

    @abstractmethod
    def _choose(self, now: float) -> Iterable[OpenTurn]:
        """Waiting turns that may start, with their backend set."""

    def deadline(self, turn: OpenTurn) -> float:  # noqa: ARG002
        """When a turn that still waits is refused."""
        return inf

    def give_up(self, turn: OpenTurn, now: float) -> None:  # noqa: ARG002
        """A turn was refused, or its client has gone."""
        self.waiting.pop(turn.id, None)

    def first_token(self, turn: OpenTurn, now: float) -> None:  # noqa: B027
        """A turn's first token passed."""

    def generated(self, turn: OpenTurn) -> None:  # noqa: B027
        """A turn's answer has grown."""

    def end(self, turn: OpenTurn, now: float, *, is_complete: bool) -> None:  # noqa: ARG002
        """A turn ended, in one way or another."""
        self.inflight[turn.backend] -= 1

    def session_over(self, thread: Thread) -> None:
        """A session has had its last turn. No client says so; only caps on sessions may look."""
        home = self._homes.pop(thread.session, None)
        if home is not None:
            self._live[home] -= 1

    def see_engines(self, engines: Sequence[Engine]) -> None:  # noqa: B027
        """The engines themselves, before anything happens. Only what no router can know may be read from them."""

    def report(self, backend: int, report: EngineReport, now: float) -> None:  # noqa: B027
        """One scrape of a backend."""

    def restarted(self, backend: int, now: float) -> None:  # noqa: B027
        """A backend is another process now."""

    def next_event_at(self, now: float) -> float | None:  # noqa: ARG002
        """When to look again although nothing happened."""
        return None

    def facts(self) -> dict[str, float]:
        """What it says about itself at the end."""
        return {}

    def _home(self, turn: OpenTurn) -> int:
        """The backend that a session stays on: the one with the fewest sessions when it came."""
        session = turn.thread.session
        if session not in self._homes:
            home = min(range(self.backends), key=self._live.__getitem__)
            self._homes[session] = home
            self._live[home] += 1
        return self._homes[session]


class PassThrough(Policy):
    """Everything at once, each session always to the same backend."""

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        for turn in self.waiting.values():
            turn.backend = self._home(turn)
            yield turn


class RoundRobin(Policy):
    """Everything at once, each turn to the next backend."""

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        for turn in self.waiting.values():
            turn.backend = turn.id % self.backends
            yield turn


class TurnCap(Policy):
    """At most so many turns at once on a backend, first come first served."""

    def __init__(self, name: str, backends: int, cap: int) -> None:
        super().__init__(name, backends)
        self._cap = cap

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        taken = list(self.inflight)
        for turn in self.waiting.values():
            turn.backend = self._home(turn)
            if taken[turn.backend] < self._cap:
                taken[turn.backend] += 1
                yield turn


class SessionCap(Policy):
    """At most so many sessions at once on a backend, each from its first turn to its last.

    It is told when one is over, which no real proxy is: the most that a fixed number can do.
    """

    def __init__(self, name: str, backends: int, cap: int) -> None:
        super().__init__(name, backends)
        self._cap = cap

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        for turn in self.waiting.values():
            if turn.thread.session in self._homes or min(self._live) < self._cap:
                turn.backend = self._home(turn)
                yield turn


class WorkingSetCap(Policy):
    """New sessions, first come first served, while all contexts fit in so many tokens (`--kv-cap` of the GPU baseline).

    Each keeps its place from its first turn to its last and counts as at least `_LEAST_TOKENS` beyond the head that all
    share; sub-agents are not counted. Like `SessionCap` it is told when a session is over.
    """

    _LEAST_TOKENS: Final = 12_000

    def __init__(self, name: str, backends: int, cap: int) -> None:
        super().__init__(name, backends)
        self._cap = cap
        self._own_tokens: list[dict[str, int]] = [{} for _ in range(backends)]

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        is_full = False
        for turn in self.waiting.values():
            if turn.thread.session not in self._homes:
                is_full = is_full or not self._enters(turn)
                if is_full:
                    continue
            turn.backend = self._homes[turn.thread.session]
            yield turn

    def _enters(self, turn: OpenTurn) -> bool:
        head_tokens = turn.thread.plan.head_tokens
        used = [head_tokens + sum(own.values()) for own in self._own_tokens]
        home = min(range(self.backends), key=used.__getitem__)
        own_tokens = max(self._LEAST_TOKENS, turn.prompt_tokens - head_tokens)
        if self._own_tokens[home] and used[home] + own_tokens > self._cap:
            return False
        self._homes[turn.thread.session] = home
        self._live[home] += 1
        self._own_tokens[home][turn.thread.session] = own_tokens
        return True

    def end(self, turn: OpenTurn, now: float, *, is_complete: bool) -> None:
        """See `Policy`."""
        super().end(turn, now, is_complete=is_complete)
        if turn.thread.parent is None:
            own_tokens = turn.prompt_tokens + turn.generated_tokens - turn.thread.plan.head_tokens
            self._own_tokens[turn.backend][turn.thread.session] = max(self._LEAST_TOKENS, own_tokens)

    def session_over(self, thread: Thread) -> None:
        """See `Policy`."""
        self._own_tokens[self._homes[thread.session]].pop(thread.session, None)
        super().session_over(thread)


class GaugeGate(Policy):
    """Lets turns through while the last scrape shows usage below .8 and fewer than 5 waiting (llm-d's detector)."""

    _USAGE: Final = 0.8
    _WAITING: Final = 5

    def __init__(self, name: str, backends: int) -> None:
        super().__init__(name, backends)
        self._is_open = [True] * backends

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        for turn in self.waiting.values():
            turn.backend = self._home(turn)
            if self._is_open[turn.backend] or not self.inflight[turn.backend]:
                yield turn

    def report(self, backend: int, report: EngineReport, now: float) -> None:  # noqa: ARG002
        """See `Policy`."""
        self._is_open[backend] = report.usage_ratio < self._USAGE and report.waiting < self._WAITING


class Concur(SessionCap):
    """CONCUR's rule: a window of active agents, grown by 2 while usage is below .2, halved above .5 with few hits.

    Agents keep their place to the end of their session; when the window shrinks, those that came last wait at their
    next turn. Looked at every 5 s.
    """

    _TICK_S: Final = 5.0
    _LOW_USAGE: Final = 0.2
    _HIGH_USAGE: Final = 0.5
    _LOW_HITS: Final = 0.5
    _GROWTH: Final = 2

    def __init__(self, name: str, backends: int) -> None:
        super().__init__(name, backends, cap=0)
        self._windows = [4.0] * backends
        self._looked_at = [0.0] * backends
        self._seen = [(0, 0)] * backends
        self._members: list[list[str]] = [[] for _ in range(backends)]

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        for turn in self.waiting.values():
            home = self._home(turn)
            members = self._members[home]
            session = turn.thread.session
            if session not in members:
                if len(members) >= self._windows[home]:
                    continue
                members.append(session)
            turn.backend = home
            yield turn

    def session_over(self, thread: Thread) -> None:
        """See `Policy`."""
        for members in self._members:
            if thread.session in members:
                members.remove(thread.session)
        super().session_over(thread)

    def report(self, backend: int, report: EngineReport, now: float) -> None:
        """See `Policy`."""
        if now - self._looked_at[backend] < self._TICK_S:
            return
        self._looked_at[backend] = now
        queries, hits = report.counters.prefix_queries, report.counters.prefix_hits
        asked, found = queries - self._seen[backend][0], hits - self._seen[backend][1]
        self._seen[backend] = (queries, hits)
        if report.usage_ratio < self._LOW_USAGE:
            self._windows[backend] += self._GROWTH
        elif report.usage_ratio > self._HIGH_USAGE and asked and found < self._LOW_HITS * asked:
            self._windows[backend] = max(1.0, self._windows[backend] / 2)
            del self._members[backend][int(self._windows[backend]) :]
