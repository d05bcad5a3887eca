"""What happened between two reports of one engine: rates that are never negative, and whether it is the same engine.

Pure. A counter that goes back may be a restarted engine, or another process behind the same address (L57): one that
stays back is a restart, one that comes forward again is not, and neither gives a rate.
"""

from dataclasses import dataclass
from typing import Final

from proxy.core.reports import Continuity, EngineCounters, EngineReport, ReportDelta
from proxy.engines.readings import ratio

FLAPPING_S: Final = 15.0
"""A second break within this time is another process answering: no engine loads a model faster."""
_SAME_START_S: Final = 1.0

_GROWING: Final = (
    "preemptions",
    "prefix_queries_tokens",
    "prefix_hits_tokens",
    "external_queries_tokens",
    "external_hits_tokens",
    "prompt_tokens",
    "generation_tokens",
    "iterations",
    "successes",
    "drafts",
    "draft_tokens",
    "accepted_draft_tokens",
    "prefilled_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTrack:
    """What to remember of an engine until its next report.

    Attributes:
        fell_from: the report before counters went back, while it is not known yet why.
        broke_at_s: when a report last contradicted the one before it.
    """

    report: EngineReport
    at_s: float
    continuity: Continuity
    fell_from: EngineReport | None = None
    broke_at_s: float | None = None

    def is_flapping(self, now: float) -> bool:
        """Whether the last contradiction is too recent for a second one to be a restart."""
        return self.broke_at_s is not None and now - self.broke_at_s < FLAPPING_S


def follow(track: EngineTrack | None, report: EngineReport, at_s: float) -> tuple[EngineTrack, ReportDelta]:
    """Take the next report.

    Args:
        track: what the call before returned, or None for an engine's first report.
        report: the facts now.
        at_s: monotonic seconds of the scrape.
    """
    if track is None:
        continuity = Continuity.FIRST
        return EngineTrack(report=report, at_s=at_s, continuity=continuity), ReportDelta(continuity=continuity)
    continuity, is_break = _continuity(track, report, at_s)
    following = EngineTrack(
        report=report,
        at_s=at_s,
        continuity=continuity,
        fell_from=track.report if continuity is Continuity.UNSURE else None,
        broke_at_s=at_s if is_break else track.broke_at_s,
    )
    if continuity is not Continuity.CONTINUED or at_s <= track.at_s:
        return following, ReportDelta(continuity=continuity)
    return following, _delta(track.report.counters, report.counters, at_s - track.at_s)


def _continuity(track: EngineTrack, report: EngineReport, at_s: float) -> tuple[Continuity, bool]:
    """How the report follows, and whether it contradicts the one before."""
    is_flapping = track.is_flapping(at_s)
    began, begins = track.report.process_start_time_s, report.process_start_time_s
    if began is not None and begins is not None and abs(begins - began) > _SAME_START_S:
        return (Continuity.RESTARTED if begins > began and not is_flapping else Continuity.ALTERNATING), True
    has_fallen = _has_fallen(track.report.counters, report.counters)
    if track.fell_from is not None:
        if has_fallen or not _has_fallen(track.fell_from.counters, report.counters):
            return Continuity.ALTERNATING, True
        return Continuity.RESTARTED, False
    if has_fallen:
        return (Continuity.ALTERNATING if is_flapping else Continuity.UNSURE), True
    if is_flapping and track.continuity is Continuity.ALTERNATING:
        return Continuity.ALTERNATING, False
    return Continuity.CONTINUED, False


def _delta(before: EngineCounters, after: EngineCounters, interval_s: float) -> ReportDelta:
    grown = {name: _grown(before, after, name) for name in _GROWING}
    queries, hits = grown["prefix_queries_tokens"], grown["prefix_hits_tokens"]
    drafts, accepted = grown["drafts"], grown["accepted_draft_tokens"]
    computed = _by_source(before, after, "local_compute")
    pulse = [count for count in (grown["iterations"], grown["generation_tokens"]) if count is not None]
    return ReportDelta(
        continuity=Continuity.CONTINUED,
        interval_s=interval_s,
        preemptions=grown["preemptions"],
        prefix_queries_tokens=queries,
        prefix_hits_tokens=hits,
        prefix_hit_ratio=ratio(hits, queries),
        external_hits_tokens=grown["external_hits_tokens"],
        external_hit_ratio=ratio(grown["external_hits_tokens"], grown["external_queries_tokens"]),
        prompt_tokens_per_s=_rate(grown["prompt_tokens"], interval_s),
        computed_tokens=computed,
        fetched_tokens=_by_source(before, after, "external_kv_transfer"),
        computed_tokens_per_s=_rate(computed, interval_s),
        prefill_tokens_per_s=_prefill_rate(before, after),
        generation_tokens_per_s=_rate(grown["generation_tokens"], interval_s),
        iterations_per_s=_rate(grown["iterations"], interval_s),
        successes=grown["successes"],
        draft_accept_ratio=ratio(accepted, grown["draft_tokens"]),
        tokens_per_draft=1 + accepted / drafts if drafts and accepted is not None else None,
        has_progressed=any(pulse) if pulse else None,
    )


def _by_source(before: EngineCounters, after: EngineCounters, source: str) -> int | None:
    earlier = before.prompt_tokens_by_source.get(source)
    later = after.prompt_tokens_by_source.get(source)
    return None if earlier is None or later is None else max(0, later - earlier)


def _prefill_rate(before: EngineCounters, after: EngineCounters) -> float | None:
    """Tokens of the prompts whose requests have ended meanwhile, by the time that was spent on them."""
    tokens = _grown(before, after, "prefilled_tokens")
    if not tokens or before.prefill_s is None or after.prefill_s is None or after.prefill_s <= before.prefill_s:
        return None
    return tokens / (after.prefill_s - before.prefill_s)


def _rate(count: int | None, interval_s: float) -> float | None:
    return None if count is None else count / interval_s


def _has_fallen(before: EngineCounters, after: EngineCounters) -> bool:
    """Whether any counter that both know went back."""
    return any((_grown(before, after, name) or 0) < 0 for name in _GROWING)


def _grown(before: EngineCounters, after: EngineCounters, name: str) -> int | None:
    earlier, later = getattr(before, name), getattr(after, name)
    return None if earlier is None or later is None else later - earlier
