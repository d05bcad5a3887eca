"""The admin paths: is it alive, is it ready, what does it see. Answers are functions of values; no backend is asked.

Served on the data port, or on a listener of their own that serves nothing else.
"""

import html
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from proxy.core.snapshots import BackendSnapshot, EngineSnapshot, FleetSnapshot, KvSnapshot
from proxy.dispatch import Fleet
from proxy.net.server import AdminAnswer, AdminPaths

Exposition = Callable[[str], tuple[bytes, str]]
"""Accept header in, metrics page and its content type out."""


def bare_page(status: Mapping[str, Any]) -> str:
    """The status as text, where nobody draws a page of it."""
    text = orjson.dumps(status, option=orjson.OPT_INDENT_2).decode()
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Tidegate</title><pre>{html.escape(text)}</pre></html>"
    )


class AdminPages:
    """Builds the answers.

    Args:
        version: the product's.
        fleet: what is known of the backends.
        exposition: the metrics page.
        is_draining: whether the proxy is about to stop.
        snapshot: what admission sees now.
        page: draws the status for people.
    """

    def __init__(
        self,
        *,
        version: str,
        fleet: Fleet,
        exposition: Exposition,
        is_draining: Callable[[], bool],
        snapshot: Callable[[], FleetSnapshot] = FleetSnapshot,
        page: Callable[[Mapping[str, Any]], str] = bare_page,
    ) -> None:
        self._version = version
        self._fleet = fleet
        self._exposition = exposition
        self._is_draining = is_draining
        self._snapshot = snapshot
        self._page = page

    def paths(self) -> AdminPaths:
        """Every admin path and what answers it."""
        return {
            "/metrics": self._metrics,
            "/healthz": lambda _accept: _text("ok\n"),
            "/readyz": lambda _accept: self._ready(),
            "/status.json": lambda _accept: AdminAnswer(orjson.dumps(self.status()), "application/json"),
            "/status": lambda _accept: AdminAnswer(self._page(self.status()).encode(), "text/html; charset=utf-8"),
        }

    def status(self) -> dict[str, Any]:
        """What the status page shows."""
        fleet, snapshot = self._fleet, self._snapshot()
        seen = {backend.name: backend for backend in snapshot.backends}
        return {
            "version": self._version,
            "is_draining": self._is_draining(),
            "inflight_requests": fleet.ledger.total_inflight,
            "admission": _admission(snapshot),
            "backends": [
                {
                    "name": backend.name,
                    "is_up": fleet.health.is_up(backend.name),
                    "inflight_requests": fleet.ledger.inflight(backend.name),
                    "models": fleet.models.of(backend.name),
                    **_room(seen.get(backend.name)),
                }
                for backend in fleet.backends
            ],
        }

    def _metrics(self, accept: str) -> AdminAnswer:
        body, content_type = self._exposition(accept)
        return AdminAnswer(body, content_type)

    def _ready(self) -> AdminAnswer:
        if self._is_draining():
            return _text("draining\n", 503)
        if not any(self._fleet.health.is_up(backend.name) for backend in self._fleet.backends):
            return _text("no backend is up\n", 503)
        return _text("ready\n")


def admin_application(paths: AdminPaths) -> web.Application:
    """A listener of its own for the admin paths."""
    application = web.Application()
    for path, answer in paths.items():

        async def handle(request: web.Request, answer: Callable[[str], AdminAnswer] = answer) -> web.Response:
            made = answer(request.headers.get("Accept", ""))
            return web.Response(body=made.body, status=made.status, headers={"Content-Type": made.content_type})

        application.router.add_get(path, handle)
    return application


def _text(text: str, status: int = 200) -> AdminAnswer:
    return AdminAnswer(text.encode(), "text/plain; charset=utf-8", status)


def _admission(snapshot: FleetSnapshot) -> dict[str, Any]:
    return {
        "mode": snapshot.admission_mode,
        "waiting_requests": sum(one.requests for one in snapshot.waiting),
        "held_tokens": sum(one.prompt_tokens for one in snapshot.waiting),
        "known_sessions": snapshot.known_sessions,
        "waiting": [
            {
                "class": one.name,
                "requests": one.requests,
                "prompt_tokens": one.prompt_tokens,
                "oldest_wait_s": _rounded(one.oldest_wait_s),
            }
            for one in snapshot.waiting
        ],
    }


def _room(backend: BackendSnapshot | None) -> dict[str, Any]:
    """What admission and the engine itself say of a backend; null is unknown."""
    seen = backend or BackendSnapshot(name="", is_up=False, inflight_requests=0)
    return {
        "report_age_s": _rounded(seen.report_age_s),
        "ghost_misses": seen.ghost_misses,
        "kv": _figures(seen.kv),
        "engine": _figures(seen.engine),
    }


def _figures(values: KvSnapshot | EngineSnapshot | None) -> dict[str, Any] | None:
    return {name: _rounded(value) for name, value in asdict(values).items()} if values is not None else None


def _rounded(value: float | None) -> float | None:
    return round(value, 3) if isinstance(value, float) else value
