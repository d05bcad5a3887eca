"""From the reports of `tidegate replay` to one table and what must hold.

A report is the `summary` of one run in what `--json` wrote.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

Report = Mapping[str, Any]

LEAST_SPEED_UP: Final = 1.8
MOST_PREEMPTIONS: Final = 0
MOST_WAITING: Final = 0.5
LEAST_HITS: Final = 0.85


@dataclass(frozen=True)
class Verdict:
    """One thing that must hold."""

    what: str
    holds: bool
    seen: str


def judge(past: Sequence[Report], through: Report) -> tuple[Verdict, ...]:
    """What the issue asks of the run through the proxy; beside the mean of the runs past it."""
    engine = through["engine"]
    usual = mean(report["turns_per_s"] for report in past)
    speed_up = through["turns_per_s"] / usual if usual else None
    return (
        _verdict(f"turns/s at least {LEAST_SPEED_UP} times", speed_up, lambda value: value >= LEAST_SPEED_UP),
        _verdict(f"preemptions {MOST_PREEMPTIONS}", engine["preemptions"], lambda value: value <= MOST_PREEMPTIONS),
        _verdict(f"mean waiting at most {MOST_WAITING}", engine["waiting_mean"], lambda value: value <= MOST_WAITING),
        _verdict(f"hit rate at least {LEAST_HITS}", engine["prefix_hit_ratio"], lambda value: value >= LEAST_HITS),
    )


def tell_verdicts(verdicts: Iterable[Verdict]) -> bool:
    """Print them; whether all of them hold."""
    told = list(verdicts)
    for verdict in told:
        sys.stdout.write(f"{'ok  ' if verdict.holds else 'FAIL'}  {verdict.what}: {verdict.seen}\n")
    sys.stdout.flush()
    return all(verdict.holds for verdict in told)


def _verdict(what: str, value: float | None, is_enough: Callable[[float], bool]) -> Verdict:
    """A figure that is not known holds nothing."""
    return Verdict(what, value is not None and is_enough(value), _shown(value))


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items()) or "none"


def _three(values: Mapping[str, float | None]) -> str:
    return " / ".join("-" if value is None else f"{value:.1f}" for value in values.values())


_ROWS: Final[tuple[tuple[str, Callable[[Report], str]], ...]] = (
    ("turns/s", lambda it: _shown(it["turns_per_s"])),
    ("good turns/s (first token within 5 s)", lambda it: _shown(it["good_turns_per_s"])),
    ("output tok/s", lambda it: f"{it['output_tokens_per_s']:.1f}"),
    ("first token p50 / p90 / p99, s", lambda it: _three(it["first_token_s"])),
    ("own prefix found", lambda it: _shown(it["own_cached_ratio"])),
    ("engine: hit rate", lambda it: _shown(it["engine"]["prefix_hit_ratio"])),
    ("engine: waiting, mean", lambda it: _shown(it["engine"]["waiting_mean"])),
    ("engine: waiting, most", lambda it: _shown(it["engine"]["waiting_max"])),
    ("engine: running, mean", lambda it: _shown(it["engine"]["running_mean"])),
    ("engine: preemptions", lambda it: _shown(it["engine"]["preemptions"])),
    ("turns an agent: slowest, fastest", lambda it: f"{it['slowest_agent_turns']}, {it['fastest_agent_turns']}"),
    ("refusals", lambda it: _counted(it["refusals"])),
    ("errors", lambda it: _counted(it["errors"])),
)


def table(names: Sequence[str], reports: Sequence[Report]) -> str:
    """A column a report."""
    lines = [["", *names], *([name, *map(show, reports)] for name, show in _ROWS)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
