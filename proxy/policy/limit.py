"""The share of an engine's blocks that admission may fill (theta), and what moves it. Pure.

The best sign that the limit is too high is a ghost miss: a turn that we believed cached came back cold. Preemptions and
requests that wait for memory inside the engine are the other two. Without any of them, and only while somebody waits,
the limit creeps back to what the labels say, and after that, slowly, past it: labels may promise too little, as those
of hybrid models do.
"""

from dataclasses import dataclass, replace
from typing import Final

START: Final = 0.97
"""Turns a minute at .85/.90/.95/.97/1.0: 11.3/11.8/12.1/12.3/12.5, and 1.0 preempts."""
LABELLED: Final = 1.0
"""All that the labels say. Running turns never get more, or the engine would preempt before anything is learned."""
MOST: Final = 1.3
"""What labels are believed to keep back at most."""
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
_PROBE_PER_S: Final = 0.0001
_PROBE_CLEAN_S: Final = 300.0
"""Past the labels a miss is what shows the true size, so it is tried seldom: with right labels there were 33 misses in
six hours, 43 after sixty seconds each (16 agents, 243k tokens). Labels a fifth too low cost 20 % of the turns without.
"""
_HIT_NOTED_S: Final = 5.0
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
        hit_at: when a turn that we believed cached last was, as far as that matters here.
    """

    theta: float = START
    cut_at: float = float("-inf")
    bad_at: float = float("-inf")
    grown_at: float = float("-inf")
    pressured_reports: int = 0
    credit: float = 0.0
    hit_at: float = float("-inf")


def is_ghost_miss(expected_tokens: int, cached_tokens: int, block_tokens: int) -> bool:
    """Whether a turn that we believed cached was not.

    The expectation is rounded down to blocks by the caller; large blocks (hybrids) can lose two of them harmlessly.
    """
    floor_tokens = max(GHOST_EXPECTED_TOKENS, 7 * block_tokens)
    return expected_tokens > floor_tokens and cached_tokens < GHOST_RATIO * expected_tokens


def after_hit(limit: Limit, now: float) -> Limit:
    """A turn that we believed cached was."""
    if limit.credit >= 1.0 and now - limit.hit_at < _HIT_NOTED_S:
        return limit
    return replace(limit, credit=min(1.0, limit.credit + _CREDIT_OF_HIT), hit_at=now)


def after_ghost_miss(limit: Limit, now: float) -> Limit:
    """Less: the engine holds less than we think. A low limit is not kept low by one miss among a hundred hits."""
    if limit.theta < _LOW and limit.credit >= 1.0:
        return replace(limit, credit=0.0)
    return _cut(replace(limit, bad_at=now), now, _GHOST_CUT, GHOST_FLOOR)


def after_report(limit: Limit, now: float, *, preemptions: int, is_short_of_memory: bool, has_waiting: bool) -> Limit:
    """Less after a preemption or three reports in a row with requests waiting for memory; else slowly more.

    Past the labels it grows five times as slowly, not before five minutes without a bad sign, and only where hits show
    that misses would be seen: an engine that does not count cached tokens could be overfull and nobody would know.

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
    is_probing = limit.theta >= LABELLED
    clean_after_s = _PROBE_CLEAN_S if is_probing else _CLEAN_S
    is_blind = is_probing and now - limit.hit_at > _CLEAN_S
    if not has_waiting or is_blind or now - limit.bad_at < clean_after_s:
        return replace(limit, grown_at=now)
    clean_s = now - max(limit.grown_at, limit.bad_at + clean_after_s, now - 5.0)
    rate, most = (_PROBE_PER_S, MOST) if is_probing else (_GROWTH_PER_S, LABELLED)
    return replace(limit, theta=max(limit.theta, min(most, limit.theta + rate * clean_s)), grown_at=now)


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
    if limit.theta > LABELLED:
        floor = LABELLED  # what was tried was wrong, the labels are not
    return replace(limit, theta=min(limit.theta, max(floor, factor * limit.theta)), cut_at=now)
