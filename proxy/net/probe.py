"""Asks each backend whether it is well and what it serves. Writes `HealthTable` and `ModelTable`; decides nothing.

Uses aiohttp's client with a pool of its own, so that a probe never waits behind traffic.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from proxy.core.backends import Backend
from proxy.core.ports import Clock
from proxy.state.health import HealthTable, Probe
from proxy.state.models import ModelTable

_MODELS_LIMIT_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """How often and how long, in seconds, and where."""

    interval_s: float
    timeout_s: float
    models_interval_s: float
    path: str


class Prober:
    """Probes all backends side by side.

    Args:
        on_change: told a backend's name, whether it is up now, and what the probe saw.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        settings: ProbeSettings,
        *,
        health: HealthTable,
        models: ModelTable,
        on_change: Callable[[str, bool, Probe], None],
        clock: Clock,
    ) -> None:
        self._backends = backends
        self._settings = settings
        self._health = health
        self._models = models
        self._on_change = on_change
        self._clock = clock
        self._models_due_at = {backend.name: 0.0 for backend in backends}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=settings.timeout_s),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def probe_once(self) -> None:
        """One probe of every backend, and the models of those that are due."""
        await asyncio.gather(*(self._probe(backend) for backend in self._backends))

    async def run(self) -> None:
        """Probe every backend at every interval until cancelled; a slow one holds up no other."""
        async with asyncio.TaskGroup() as tasks:
            for backend in self._backends:
                tasks.create_task(self._run(backend), name=f"probe {backend.name}")

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _run(self, backend: Backend) -> None:
        while True:
            await asyncio.sleep(self._settings.interval_s)
            await self._probe(backend)

    async def _probe(self, backend: Backend) -> None:
        probe = await self._health_of(backend)
        if self._health.on_probe(backend.name, probe):
            self._on_change(backend.name, self._health.is_up(backend.name), probe)
            self._models_due_at[backend.name] = 0.0
        now = self._clock()
        if probe is Probe.OK and now >= self._models_due_at[backend.name]:
            cards = await self._models_of(backend)
            if cards is not None:
                self._models.update(backend.name, cards)
            self._models_due_at[backend.name] = now + self._settings.models_interval_s

    async def _health_of(self, backend: Backend) -> Probe:
        try:
            url = _url(backend, self._settings.path)
            async with self._session.get(url, headers=_headers(backend), allow_redirects=False) as response:
                return Probe.OK if response.status == 200 else Probe.DOWN
        except TimeoutError:
            return Probe.TIMEOUT
        except (aiohttp.ClientError, OSError):
            return Probe.DOWN

    async def _models_of(self, backend: Backend) -> Sequence[Mapping[str, Any]] | None:
        """What a backend lists, or None when it cannot be read."""
        try:
            url = _url(backend, "/v1/models")
            async with self._session.get(url, headers=_headers(backend), allow_redirects=False) as response:
                if response.status != 200:
                    return None
                listed = orjson.loads(await _read(response))
        except (aiohttp.ClientError, OSError, ValueError):
            return None
        cards = listed.get("data") if isinstance(listed, dict) else None
        return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body.

    Raises:
        ValueError: it is longer than any list of models.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > _MODELS_LIMIT_BYTES:
            raise ValueError("too long")
        pieces.append(piece)
    return b"".join(pieces)


def _url(backend: Backend, path: str) -> str:
    return f"{'https' if backend.is_tls else 'http'}://{backend.authority}{backend.path_prefix}{path}"


def _headers(backend: Backend) -> dict[str, str]:
    return {"Authorization": f"Bearer {backend.api_key}"} if backend.api_key is not None else {}
