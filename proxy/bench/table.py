"""The report as one table, a column a URL. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from proxy.bench.summary import Spread, Summary

_Cell = Callable[[Summary], str]
_Amount = Callable[[Summary], float | None]


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits, or a dash."""
    if value is None:
        return "-"
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}{unit}"


def _spread(values: Spread) -> str:
    return " / ".join(number(value) for value in (values.p50, values.p90, values.p99)) + " s"


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counted.items()) or "none"


def _milliseconds(value_s: float | None) -> str:
    return "-" if value_s is None else number(1000 * value_s, " ms")


def _engine_load(figures: Summary) -> str:
    engine = figures.engine
    if engine.waiting_mean is None:
        return "-"
    return f"{number(engine.running_mean)} running, {number(engine.waiting_mean)} waiting (most {engine.waiting_max})"


def _usage(figures: Summary) -> str:
    return f"{number(figures.engine.kv_usage_mean_ratio)}, {number(figures.engine.kv_usage_max_ratio)}"


def _preemptions(figures: Summary) -> str:
    return "-" if figures.engine.preemptions is None else str(figures.engine.preemptions)


def _sizes(figures: Summary) -> str:
    return f"{number(figures.prompt_mean_tokens)}, {number(figures.answer_mean_tokens)}"


def _open(figures: Summary) -> str:
    if not figures.open_turns:
        return "none"
    oldest = number(figures.open_oldest_s, " s")
    return f"{figures.open_turns} ({figures.open_unserved} without a first token), oldest {oldest}"


def _own(figures: Summary) -> str:
    missed = f"{figures.returning_missed} of {figures.returning_turns} missed all"
    return f"{number(figures.own_cached_ratio)} ({missed})" if figures.own_cached_ratio is not None else "-"


def _rows(limit_s: float) -> tuple[tuple[str, _Cell, _Amount | None], ...]:
    """Name, how it is shown, and what a ratio is made of, if one says anything."""
    return (
        ("turns/s", lambda s: f"{number(s.turns_per_s)} ({number(s.turns_per_min)}/min)", lambda s: s.turns_per_s),
        (f"good turns/s (TTFT <= {limit_s:g} s)", lambda s: number(s.good_turns_per_s), lambda s: s.good_turns_per_s),
        ("  holds not counted", lambda s: number(s.good_turns_unheld_per_s), lambda s: s.good_turns_unheld_per_s),
        ("output tok/s", lambda s: number(s.output_tokens_per_s), lambda s: s.output_tokens_per_s),
        ("sessions finished", lambda s: str(s.sessions_finished), lambda s: s.sessions_finished),
        ("TTFT p50/p90/p99, holds in", lambda s: _spread(s.first_token_s), lambda s: s.first_token_s.p50),
        ("TTFT without holds", lambda s: _spread(s.first_token_unheld_s), lambda s: s.first_token_unheld_s.p50),
        ("hold", lambda s: _spread(s.hold_s), None),
        ("time a token, p50", lambda s: _milliseconds(s.token_gap_p50_s), lambda s: s.token_gap_p50_s),
        ("still open at the end", _open, None),
        ("prompt, answer (mean tokens)", _sizes, None),
        ("cached part of prompts", lambda s: number(s.cached_ratio), lambda s: s.cached_ratio),
        ("  of returning turns' own part", _own, lambda s: s.own_cached_ratio),
        ("turns an agent: slowest, fastest", lambda s: f"{s.slowest_agent_turns}, {s.fastest_agent_turns}", None),
        ("fairness (Jain)", lambda s: number(s.jain), lambda s: s.jain),
        ("refusals", lambda s: _counts(s.refusals), None),
        ("errors", lambda s: _counts(s.errors), None),
        ("sessions given up", lambda s: str(s.sessions_given_up), None),
        ("engine: preemptions", _preemptions, None),
        ("engine: requests (mean)", _engine_load, None),
        ("engine: KV usage mean, max", _usage, None),
        ("engine: prefix hits", lambda s: number(s.engine.prefix_hit_ratio), lambda s: s.engine.prefix_hit_ratio),
    )  # fmt: skip


def table(names: Sequence[str], summaries: Sequence[Summary], limit_s: float) -> str:
    """One column a summary; with two, the ratio of the second to the first."""
    lines = [["", *names]]
    lines += [[name, *map(show, summaries), *_ratio(summaries, amount)] for name, show, amount in _rows(limit_s)]
    if len(summaries) == _TWO:
        lines[0].append("ratio")
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


_TWO: Final = 2


def _ratio(summaries: Sequence[Summary], amount: _Amount | None) -> list[str]:
    if len(summaries) != _TWO:
        return []
    if amount is None:
        return [""]
    first, second = amount(summaries[0]), amount(summaries[1])
    return [number(second / first) if first and second is not None else "-"]
