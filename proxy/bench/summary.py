"""From a run's records to the figures of the report. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proxy.bench.records import EngineSample, Event, RunRecord, TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Nearest-rank percentiles; None without values."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """What all engines together said of themselves during the window, from one sample a second."""

    preemptions: int | None
    prefix_hit_ratio: float | None
    running_mean: float | None
    waiting_mean: float | None
    waiting_max: int | None
    kv_usage_mean_ratio: float | None
    kv_usage_max_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The measured window in figures. None: there was nothing to measure it by.

    Attributes:
        good_turns_per_s: turns finished in the window whose first token had come within the limit, holds included.
        good_turns_unheld_per_s: the same with the limit counted from when the proxy let the turn in.
        first_token_s: from the moment the agent wanted the turn.
        first_token_unheld_s: the same without refusals' pauses and without what the proxy said it held.
        hold_s: those two together, by turn.
        own_cached_ratio: of returning turns' prompts beyond the shared head, the part that the engine still had.
        jain: fairness of agents' turns; 1 is even.
        open_turns: not answered when the window ended; `open_unserved` of them without a first token.
    """

    agents: int
    window_s: float
    turns: int
    turns_per_s: float
    turns_per_min: float
    good_turns_per_s: float
    good_turns_unheld_per_s: float
    sessions_finished: int
    sessions_given_up: int
    output_tokens_per_s: float
    first_token_s: Spread
    first_token_unheld_s: Spread
    hold_s: Spread
    token_gap_p50_s: float | None
    prompt_mean_tokens: float | None
    answer_mean_tokens: float | None
    cached_ratio: float | None
    own_cached_ratio: float | None
    returning_turns: int
    returning_missed: int
    errors: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    jain: float | None
    slowest_agent_turns: int
    fastest_agent_turns: int
    open_turns: int
    open_unserved: int
    open_oldest_s: float
    engine: EngineFigures


def summarise(run: RunRecord, first_token_limit_s: float) -> Summary:
    """The figures of a run's window."""
    window_s = max(run.end_s - run.begin_s, 1e-9)
    ended = [turn for turn in run.turns if not turn.is_failed and _is_in(run, turn.end_s)]
    begun = [turn for turn in run.turns if _is_in(run, turn.first_s)]
    open_turns = [turn for turn in run.turns if turn.end_s is None or turn.end_s > run.end_s]
    waits_s = [(wait_s, wait_s - _hold_s(turn)) for turn in ended if (wait_s := _first_token_s(turn)) is not None]
    by_agent = Counter(turn.agent for turn in ended)
    agent_turns = [by_agent[agent] for agent in range(run.agents)]
    returning = [turn for turn in ended if turn.is_returning]
    return Summary(
        agents=run.agents,
        window_s=window_s,
        turns=len(ended),
        turns_per_s=len(ended) / window_s,
        turns_per_min=60 * len(ended) / window_s,
        good_turns_per_s=sum(wait_s <= first_token_limit_s for wait_s, _ in waits_s) / window_s,
        good_turns_unheld_per_s=sum(unheld_s <= first_token_limit_s for _, unheld_s in waits_s) / window_s,
        sessions_finished=sum(_is_in(run, time_s) for time_s in run.sessions),
        sessions_given_up=sum(_is_in(run, time_s) for time_s in run.given_up),
        output_tokens_per_s=sum(_tokens_in(run, turn) for turn in run.turns) / window_s,
        first_token_s=spread(map(_first_token_s, begun)),
        first_token_unheld_s=spread((_first_token_s(turn) or 0.0) - _hold_s(turn) for turn in begun),
        hold_s=spread(map(_hold_s, begun)),
        token_gap_p50_s=percentile(list(_known(map(_token_gap_s, ended))), 50),
        prompt_mean_tokens=mean(turn.prompt_tokens for turn in ended),
        answer_mean_tokens=mean(turn.answer_tokens for turn in ended),
        cached_ratio=_cached_ratio(ended, is_own_part=False),
        own_cached_ratio=_cached_ratio(returning, is_own_part=True),
        returning_turns=len(returning),
        returning_missed=sum(_has_missed(turn) for turn in returning),
        errors=_counted(run, run.errors),
        refusals=_counted(run, run.refusals),
        jain=jain(agent_turns),
        slowest_agent_turns=min(agent_turns),
        fastest_agent_turns=max(agent_turns),
        open_turns=len(open_turns),
        open_unserved=sum(turn.first_s is None for turn in open_turns),
        open_oldest_s=max((run.end_s - turn.wanted_s for turn in open_turns), default=0.0),
        engine=engine_figures([sample for sample in run.samples if _is_in(run, sample.time_s)]),
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile."""
    if not values:
        return None
    rank = -(-len(values) * percent // 100)  # rounded up
    return sorted(values)[max(int(rank), 1) - 1]


def spread(values: Iterable[float | None]) -> Spread:
    """Three percentiles of what is known."""
    known = list(_known(values))
    return Spread(p50=percentile(known, 50), p90=percentile(known, 90), p99=percentile(known, 99))


def jain(amounts: Sequence[float]) -> float | None:
    """Jain's index: 1 when all have the same, 1/n when one has everything; None when nobody has anything."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known."""
    known = list(_known(values))
    return sum(known) / len(known) if known else None


def _known(values: Iterable[float | None]) -> Iterable[float]:
    return (value for value in values if value is not None)


def _is_in(run: RunRecord, time_s: float | None) -> bool:
    return time_s is not None and run.begin_s <= time_s <= run.end_s


def _first_token_s(turn: TurnRecord) -> float | None:
    return None if turn.first_s is None else turn.first_s - turn.wanted_s


def _hold_s(turn: TurnRecord) -> float:
    return turn.refused_wait_s + turn.queued_s


def _token_gap_s(turn: TurnRecord) -> float | None:
    if turn.first_s is None or turn.end_s is None or (turn.answer_tokens or 0) < 2:
        return None
    return (turn.end_s - turn.first_s) / ((turn.answer_tokens or 0) - 1)


def _tokens_in(run: RunRecord, turn: TurnRecord) -> float:
    """The tokens of an answer that came within the window, taking them as evenly spread."""
    if turn.first_s is None:
        return 0.0
    tokens = turn.answer_pieces if turn.answer_tokens is None else turn.answer_tokens
    last_s = run.end_s if turn.end_s is None else turn.end_s
    inside_s = min(last_s, run.end_s) - max(turn.first_s, run.begin_s)
    if last_s <= turn.first_s:
        return float(tokens) if inside_s >= 0 else 0.0
    return tokens * max(inside_s, 0.0) / (last_s - turn.first_s)


def _cached_ratio(turns: Iterable[TurnRecord], *, is_own_part: bool) -> float | None:
    """Cached over all prompt tokens; of the own part, what all sessions share counts on neither side."""
    cached = total = 0
    for turn in turns:
        if turn.cached_tokens is not None and turn.prompt_tokens is not None:
            shared = turn.shared_tokens if is_own_part else 0
            cached += max(turn.cached_tokens - shared, 0)
            total += max(turn.prompt_tokens - shared, 0)
    return cached / total if total else None


def _has_missed(turn: TurnRecord) -> bool:
    return turn.cached_tokens is not None and turn.cached_tokens <= turn.shared_tokens


def _counted(run: RunRecord, events: Iterable[Event]) -> dict[str, int]:
    return dict(sorted(Counter(event.name for event in events if _is_in(run, event.time_s)).items()))


def engine_figures(samples: Sequence[EngineSample]) -> EngineFigures:
    """The figures of a window's samples."""
    usage = list(_known(sample.kv_usage_ratio for sample in samples))
    waiting = [sample.waiting for sample in samples if sample.waiting is not None]
    queries = _grown([sample.prefix_queries_tokens for sample in samples])
    hits = _grown([sample.prefix_hits_tokens for sample in samples])
    return EngineFigures(
        preemptions=_grown([sample.preemptions for sample in samples]),
        prefix_hit_ratio=hits / queries if queries and hits is not None else None,
        running_mean=mean(sample.running for sample in samples),
        waiting_mean=mean(waiting),
        waiting_max=max(waiting, default=None),
        kv_usage_mean_ratio=mean(usage),
        kv_usage_max_ratio=max(usage, default=None),
    )


def _grown(values: Sequence[int | None]) -> int | None:
    """How much a counter grew; None when it is not known, or went back because an engine restarted."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or known[-1] < known[0]:
        return None
    return known[-1] - known[0]
