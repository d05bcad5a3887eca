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
_LOOK_EVERY_S: Final = 1.0
"""Names that nobody lists make the backends be asked anew this often at most. They keep a request until then, and for
as long again where a backend hangs."""


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
        on_models: told a backend's name when it lists other models than before.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        settings: ProbeSettings,
        *,
        health: HealthTable,
        models: ModelTable,
        on_change: Callable[[str, bool, Probe], None],
        on_models: Callable[[str], None] | None = None,
        clock: Clock,
    ) -> None:
        self._backends = backends
        self._settings = settings
        self._health = health
        self._models = models
        self._on_change = on_change
        self._on_models = on_models
        self._clock = clock
        self._look: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
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
        if self._look is not None:
            self._look.cancel()
        await self._session.close()

    def doubt_models(self, name: str) -> None:
        """A backend may list other models than before: its next probe asks for them."""
        self._models_due_at[name] = 0.0

    async def look_for_models(self) -> None:
        """Ask all backends that are up for their models, a second after the last time at the earliest.

        Whoever comes before that waits for it: what was asked for just now may have been loaded since. All wait for the
        same answers, and nobody for a backend that hangs.
        """
        now = self._clock()
        if self._look is None or self._look.done():
            self._looked_at = max(now, self._looked_at + _LOOK_EVERY_S)
            look = self._look_once(self._looked_at - now)
            self._look = asyncio.get_running_loop().create_task(look, name="look for models")
        await asyncio.wait({self._look}, timeout=max(0.0, self._looked_at - now) + _LOOK_EVERY_S)

    async def _look_once(self, in_s: float) -> None:
        await asyncio.sleep(in_s)
        up = [backend for backend in self._backends if self._health.is_up(backend.name)]
        await asyncio.gather(*(self._read_models(backend) for backend in up))

    async def _run(self, backend: Backend) -> None:
        while True:
            await asyncio.sleep(self._settings.interval_s)
            await self._probe(backend)

    async def _probe(self, backend: Backend) -> None:
        probe = await self._health_of(backend)
        now, is_up = self._clock(), self._health.is_up(backend.name)
        # One that comes up says what it serves first: requests that wait go there at once, and adapters may be gone.
        if probe is Probe.OK and (not is_up or now >= self._models_due_at[backend.name]):
            self._models_due_at[backend.name] = now + self._settings.models_interval_s
            await self._read_models(backend)
        if self._health.on_probe(backend.name, probe):
            self._on_change(backend.name, self._health.is_up(backend.name), probe)

    async def _read_models(self, backend: Backend) -> None:
        cards = await self._models_of(backend)
        if cards is not None and self._models.update(backend.name, cards) and self._on_models is not None:
            self._on_models(backend.name)

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
