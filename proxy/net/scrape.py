"""Reads each backend's metrics page once a second and passes on what it says. Decides nothing, never raises.

Uses aiohttp's client with a pool of its own, so that a scrape never waits behind traffic. One scrape of a backend is in
flight at a time; a slow backend delays nobody else's.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from proxy.core.backends import Backend
from proxy.core.ports import Clock
from proxy.core.reports import EngineReport, ScrapeFailure
from proxy.engines import parse_page

Reports = tuple[EngineReport, ...]

_MISSING_STATUSES: Final = frozenset({404, 405, 410, 501})


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How often, how long, how much, and where.

    Attributes:
        jitter_ratio: how far an interval may be off, so that several proxies do not ask in step.
        size_limit_bytes: of a page; vLLM's has 60 kB, more with many engines.
    """

    interval_s: float = 1.0
    timeout_s: float = 0.8
    jitter_ratio: float = 0.1
    size_limit_bytes: int = 4 * 1024 * 1024
    path: str = "/metrics"


@dataclass(frozen=True, slots=True)
class LastScrape:
    """A backend's last good page.

    Attributes:
        at_s: monotonic seconds when it was asked for: its facts are no older.
    """

    reports: Reports
    at_s: float


class Scraper:
    """Scrapes all backends side by side.

    Args:
        on_report: told a backend's name, its engines' reports, and when they were asked for.
        on_failure: told a backend's name, why nothing came, and when it was asked.
        chance: a number from 0 up to 1.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        settings: ScrapeSettings,
        *,
        on_report: Callable[[str, Reports, float], None],
        on_failure: Callable[[str, ScrapeFailure, float], None],
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        self._backends = backends
        self._settings = settings
        self._on_report = on_report
        self._on_failure = on_failure
        self._clock = clock
        self._chance = chance
        self._last: dict[str, LastScrape] = {}
        self._in_flight: set[str] = set()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=settings.timeout_s),
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=4.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    def __repr__(self) -> str:
        return f"<Scraper: {len(self._backends)} backends, {len(self._last)} with a page>"

    def last(self, name: str) -> LastScrape | None:
        """A backend's last good page, however old; None before the first."""
        return self._last.get(name)

    async def scrape_once(self, backend: Backend) -> None:
        """One scrape; nothing happens while another of the same backend is in flight."""
        if backend.name in self._in_flight:
            return
        self._in_flight.add(backend.name)
        try:
            now = self._clock()
            seen = await self._seen(backend)
        finally:
            self._in_flight.discard(backend.name)
        if isinstance(seen, ScrapeFailure):
            self._on_failure(backend.name, seen, now)
        else:
            self._last[backend.name] = LastScrape(seen, now)
            self._on_report(backend.name, seen, now)

    async def run(self) -> None:
        """Scrape every backend at every interval until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for backend in self._backends:
                tasks.create_task(self._run(backend), name=f"scrape {backend.name}")

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    def next_pause_s(self, spent_s: float) -> float:
        """How long to wait after a scrape that took this long."""
        jitter = self._settings.jitter_ratio * (2 * self._chance() - 1)
        return max(0.0, self._settings.interval_s * (1 + jitter) - spent_s)

    async def _run(self, backend: Backend) -> None:
        while True:
            began = self._clock()
            await self.scrape_once(backend)
            await asyncio.sleep(self.next_pause_s(self._clock() - began))

    async def _seen(self, backend: Backend) -> Reports | ScrapeFailure:
        try:
            page = await self._page(backend)
        except TimeoutError:
            return ScrapeFailure.TIMEOUT
        except (aiohttp.ClientError, OSError, ValueError):
            return ScrapeFailure.UNREACHABLE
        if isinstance(page, ScrapeFailure):
            return page
        return parse_page(page.decode(errors="replace")) or ScrapeFailure.NOT_AN_ENGINE

    async def _page(self, backend: Backend) -> bytes | ScrapeFailure:
        url = f"{'https' if backend.is_tls else 'http'}://{backend.authority}{backend.path_prefix}{self._settings.path}"
        # Compressing the page would cost the engine's API server more than it saves here.
        headers = {"Accept": "text/plain", "Accept-Encoding": "identity"}
        if backend.api_key is not None:
            headers["Authorization"] = f"Bearer {backend.api_key}"
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                return ScrapeFailure.MISSING if response.status in _MISSING_STATUSES else ScrapeFailure.STATUS
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                response.close()
                return ScrapeFailure.ENCODED
            page = bytearray()
            async for piece in response.content.iter_any():
                page += piece
                if len(page) > self._settings.size_limit_bytes:
                    response.close()
                    return ScrapeFailure.TOO_LARGE
            return bytes(page)
