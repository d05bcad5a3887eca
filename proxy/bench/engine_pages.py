"""Reads engines' own metrics pages into one sample: what they run, keep waiting, hold and have thrown out."""

from collections.abc import Sequence
from typing import Final

import aiohttp

from proxy.bench.records import EngineSample
from proxy.core.ports import Clock
from proxy.core.reports import EngineReport
from proxy.engines import parse_page

_PATIENCE: Final = aiohttp.ClientTimeout(total=5)


async def read_engines(http: aiohttp.ClientSession, urls: Sequence[str]) -> list[EngineReport]:
    """The reports of all engines behind these pages; a page that does not answer or is no engine's gives none."""
    reports: list[EngineReport] = []
    for url in urls:
        try:
            async with http.get(url, timeout=_PATIENCE) as response:
                text = await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
            continue
        reports.extend(parse_page(text))
    return reports


async def sample(http: aiohttp.ClientSession, urls: Sequence[str], clock: Clock) -> EngineSample | None:
    """All engines together now, or None when none answers."""
    reports = await read_engines(http, urls)
    return together(reports, clock()) if reports else None


def together(reports: Sequence[EngineReport], now_s: float) -> EngineSample:
    """Several engines as one."""
    usages = [report.kv_usage_ratio for report in reports if report.kv_usage_ratio is not None]
    return EngineSample(
        time_s=now_s,
        running=_sum([report.running for report in reports]),
        waiting=_sum([report.waiting for report in reports]),
        kv_usage_ratio=sum(usages) / len(usages) if usages else None,
        preemptions=_sum([report.counters.preemptions for report in reports]),
        prefix_queries_tokens=_sum([report.counters.prefix_queries_tokens for report in reports]),
        prefix_hits_tokens=_sum([report.counters.prefix_hits_tokens for report in reports]),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
