"""The share of an engine's blocks that admission may fill (theta), and what moves it. Pure.

The best sign that the limit is too high is a ghost miss: a turn that we believed cached came back cold. Preemptions and
requests that wait for memory inside the engine are the other two. Without any of them, and only while somebody waits,
the limit creeps back.
"""

from dataclasses import dataclass, replace
from typing import Final

START: Final = 0.97
"""Turns a minute at .85/.90/.95/.97/1.0: 11.3/11.8/12.1/12.3/12.5, and 1.0 preempts."""
GHOST_FLOOR: Final = 0.40
PRESSURE_FLOOR: Final = 0.50
_GHOST_CUT: Final = 0.95
_PRESSURE_CUT: Final = 0.93
_LOW: Final = 0.8
_CREDIT_OF_HIT: Final = 0.01
"""Of a miss that a hit makes up for while the limit is low. A busy fleet has a miss a minute from clients that change
their prompts; each keeps the limit from growing for a minute, so that it would sit at its floor for ever. Not above
that: where labels overstate the cache by 40 % there were 18 % more misses with it (16 agents, 243k tokens, ten seeds).
"""
_CUT_GAP_S: Final = 10.0
"""One overfull moment evicts several sessions; they are one mistake, not several."""
_CLEAN_S: Final = 60.0
_GROWTH_PER_S: Final = 0.0005
_PRESSURE_REPORTS: Final = 3
_STALE_S: Final = 3.0
_STALE_REPORTS: Final = 3.0
_LOST_S: Final = 30.0

GHOST_EXPECTED_TOKENS: Final = 4_096
"""Below this a miss says little."""
GHOST_RATIO: Final = 0.7


@dataclass(frozen=True, slots=True)
class Limit:
    """Where the limit stands and when it last moved; times are monotonic seconds.

    Attributes:
        credit: misses that hits have made up for, one at most.
    """

    theta: float = START
    cut_at: float = float("-inf")
    bad_at: float = float("-inf")
    grown_at: float = float("-inf")
    pressured_reports: int = 0
    credit: float = 0.0


def is_ghost_miss(expected_tokens: int, cached_tokens: int, block_tokens: int) -> bool:
    """Whether a turn that we believed cached was not.

    The expectation is rounded down to blocks by the caller; large blocks (hybrids) can lose two of them harmlessly.
    """
    floor_tokens = max(GHOST_EXPECTED_TOKENS, 7 * block_tokens)
    return expected_tokens > floor_tokens and cached_tokens < GHOST_RATIO * expected_tokens


def after_hit(limit: Limit) -> Limit:
    """A turn that we believed cached was."""
    return limit if limit.credit >= 1.0 else replace(limit, credit=min(1.0, limit.credit + _CREDIT_OF_HIT))


def after_ghost_miss(limit: Limit, now: float) -> Limit:
    """Less: the engine holds less than we think. A low limit is not kept low by one miss among a hundred hits."""
    if limit.theta < _LOW and limit.credit >= 1.0:
        return replace(limit, credit=0.0)
    return _cut(replace(limit, bad_at=now), now, _GHOST_CUT, GHOST_FLOOR)


def after_report(limit: Limit, now: float, *, preemptions: int, is_short_of_memory: bool, has_waiting: bool) -> Limit:
    """Less after a preemption or three reports in a row with requests waiting for memory; else slowly more.

    Args:
        limit: where it stood.
        now: monotonic seconds of the report.
        preemptions: since the last report.
        is_short_of_memory: requests wait for blocks inside the engine, and its usage is above nine tenths.
        has_waiting: somebody waits at the proxy, so that more room would be used.
    """
    pressured = limit.pressured_reports + 1 if is_short_of_memory else 0
    limit = replace(limit, pressured_reports=pressured)
    if preemptions > 0 or pressured >= _PRESSURE_REPORTS:
        return _cut(replace(limit, bad_at=now, pressured_reports=0), now, _PRESSURE_CUT, PRESSURE_FLOOR)
    if not has_waiting or now - limit.bad_at < _CLEAN_S:
        return replace(limit, grown_at=now)
    grown = limit.theta + _GROWTH_PER_S * (now - max(limit.grown_at, limit.bad_at + _CLEAN_S, now - 5.0))
    return replace(limit, theta=max(limit.theta, min(START, grown)), grown_at=now)


def stale_after_s(report_interval_s: float) -> float:
    """How old a report has to be to count as old: some must have failed to come."""
    return max(_STALE_S, _STALE_REPORTS * report_interval_s)


def lost_after_s(report_interval_s: float) -> float:
    """How old the last report has to be for the engine to count as silent."""
    return max(_LOST_S, 2.0 * stale_after_s(report_interval_s))


def effective(theta: float, report_age_s: float | None, report_interval_s: float = 1.0) -> float:
    """The limit to go by when reports are old: a little less, never fully open, never shut.

    Args:
        theta: the limit.
        report_age_s: seconds since the last good report; None for never.
        report_interval_s: seconds between two reports when all is well.
    """
    if report_age_s is not None and report_age_s <= _STALE_S:
        return theta  # asked for each decision, and young whatever the interval
    if report_age_s is None or report_age_s > lost_after_s(report_interval_s):
        return 0.8 * theta
    return 0.9 * theta if report_age_s > stale_after_s(report_interval_s) else theta


def _cut(limit: Limit, now: float, factor: float, floor: float) -> Limit:
    if now - limit.cut_at < _CUT_GAP_S:
        return limit
    return replace(limit, theta=min(limit.theta, max(floor, factor * limit.theta)), cut_at=now)
