"""What a closed loop of agents got: rates, waits, hits and fairness over one window of virtual time.

Filled by the closed loop, shown by the simulate command.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

from proxy.sim.report import EngineReport
from proxy.sim.workloads import OpenTurn

GOOD_FIRST_TOKEN_S: Final = 5.0


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the sorted values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """One run's figures.

    Seconds to the first token count from the client's first asking ("with hold") or from the sending to an engine.

    Attributes:
        good_turns_per_min: turns whose first token came within 5 s, hold included.
        hit_ratio: prompt tokens found cached; `own_hit_ratio` is the part that returning turns have beyond the head.
        engine_idle_ratio: time in which engines had nothing to do.
        jain: over the agents' turns.
        oldest_pending_s: age of the oldest turn not answered at the end.
        refusals: times a client was told to come back; `gave_up` times it had had enough of that.
        facts: what the policy says about itself.
        request_spread: the busiest engine's turns over the mean; `computed_spread` the same of prompt tokens that were
            not cached.
    """

    policy: str
    agents: int
    seed: int
    turns_per_min: float
    tokens_per_s: float
    sessions: int
    good_turns_per_min: float
    first_token_s: tuple[float, float, float]
    first_token_with_hold_s: tuple[float, float, float]
    hold_p50_s: float
    hold_max_s: float
    hit_ratio: float
    own_hit_ratio: float
    computed_tokens_per_turn: float
    preemptions: int
    waiting_mean: float
    waiting_max: int
    usage_mean: float
    engine_idle_ratio: float
    jain: float
    fewest_turns: int
    oldest_pending_s: float
    refusals: int
    gave_up: int
    facts: dict[str, float]
    request_spread: float = 1.0
    computed_spread: float = 1.0


@dataclass(slots=True)
class Scoreboard:
    """Counts what happens after the warm-up.

    Args:
        since_s: when the window begins.
        agents: whose turns are compared.
    """

    since_s: float
    agents: int
    turns: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    sessions: int = 0
    good: int = 0
    refusals: int = 0
    gave_up: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    first_with_hold_s: list[float] = field(default_factory=list)
    holds_s: list[float] = field(default_factory=list)
    own_hits: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    preemptions: int = 0
    requests_by_engine: Counter[int] = field(default_factory=Counter)
    computed_by_engine: Counter[int] = field(default_factory=Counter)

    def sent(self, turn: OpenTurn, now: float) -> None:
        """A turn went to an engine."""
        if now > self.since_s:
            self.holds_s.append(now - turn.asked_at)

    def admitted(self, turn: OpenTurn, *, is_returning: bool, now: float) -> None:
        """An engine began a turn, and found `turn.cached_tokens` of it."""
        if now <= self.since_s:
            return
        self.prompt_tokens += turn.prompt_tokens
        self.cached_tokens += turn.cached_tokens
        self.requests_by_engine[turn.backend] += 1
        self.computed_by_engine[turn.backend] += turn.prompt_tokens - turn.cached_tokens
        head = turn.thread.plan.head_tokens
        if is_returning and turn.prompt_tokens > head:
            self.own_hits.append(max(turn.cached_tokens - head, 0) / (turn.prompt_tokens - head))

    def first_token(self, turn: OpenTurn, now: float) -> None:
        """A turn's first token came."""
        if now <= self.since_s or turn.sent_at is None:
            return
        self.first_s.append(now - turn.sent_at)
        self.first_with_hold_s.append(now - turn.asked_at)
        self.good += now - turn.asked_at <= GOOD_FIRST_TOKEN_S

    def stepped(self, tokens: int, duration_s: float, preempted: int, now: float) -> None:
        """An engine did something."""
        if now > self.since_s:
            self.tokens += tokens
            self.busy_s += duration_s
            self.preemptions += preempted

    def finished(self, turn: OpenTurn, now: float, *, is_last: bool) -> None:
        """A turn ended well."""
        if now > self.since_s:
            self.turns[turn.thread.owner] += 1
            self.sessions += is_last

    def scraped(self, report: EngineReport, now: float) -> None:
        """An engine's gauges at some moment, whether the policy saw them or not."""
        if now > self.since_s:
            self.waiting.append(report.waiting)
            self.usage.append(report.usage_ratio)

    def summary(
        self, policy: str, seed: int, window_s: float, engines: int, *, oldest_pending_s: float, facts: dict[str, float]
    ) -> Summary:
        """The run's figures."""
        each = [self.turns[agent] for agent in range(self.agents)]
        turns = sum(self.turns.values())
        computed = self.prompt_tokens - self.cached_tokens
        return Summary(
            policy=policy,
            agents=self.agents,
            seed=seed,
            turns_per_min=60 * turns / window_s,
            tokens_per_s=self.tokens / window_s,
            sessions=self.sessions,
            good_turns_per_min=60 * self.good / window_s,
            first_token_s=_three(self.first_s),
            first_token_with_hold_s=_three(self.first_with_hold_s),
            hold_p50_s=quantile(self.holds_s, 0.5),
            hold_max_s=max(self.holds_s, default=0.0),
            hit_ratio=self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            own_hit_ratio=mean(self.own_hits) if self.own_hits else 0.0,
            computed_tokens_per_turn=computed / len(self.holds_s) if self.holds_s else 0.0,
            preemptions=self.preemptions,
            waiting_mean=mean(self.waiting) if self.waiting else 0.0,
            waiting_max=max(self.waiting, default=0),
            usage_mean=mean(self.usage) if self.usage else 0.0,
            engine_idle_ratio=max(0.0, 1 - self.busy_s / (engines * window_s)),
            jain=jain(each),
            fewest_turns=min(each, default=0),
            oldest_pending_s=oldest_pending_s,
            refusals=self.refusals,
            gave_up=self.gave_up,
            facts=facts,
            request_spread=_spread(self.requests_by_engine, engines),
            computed_spread=_spread(self.computed_by_engine, engines),
        )


def _spread(by_engine: Counter[int], engines: int) -> float:
    total = by_engine.total()
    return max(by_engine.values()) * engines / total if total else 1.0


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    return quantile(values, 0.5), quantile(values, 0.9), quantile(values, 0.99)
