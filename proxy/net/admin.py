"""The admin paths: is it alive, is it ready, what does it see. Answers are functions of values; no backend is asked.

Served on the data port, or on a listener of their own that serves nothing else.
"""

import html
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from proxy.dispatch import Fleet
from proxy.net.server import AdminAnswer, AdminPaths

Exposition = Callable[[str], tuple[bytes, str]]
"""Accept header in, metrics page and its content type out."""


class AdminPages:
    """Builds the answers.

    Args:
        version: the product's.
        fleet: what is known of the backends.
        exposition: the metrics page.
        is_draining: whether the proxy is about to stop.
    """

    def __init__(self, *, version: str, fleet: Fleet, exposition: Exposition, is_draining: Callable[[], bool]) -> None:
        self._version = version
        self._fleet = fleet
        self._exposition = exposition
        self._is_draining = is_draining

    def paths(self) -> AdminPaths:
        """Every admin path and what answers it."""
        return {
            "/metrics": self._metrics,
            "/healthz": lambda _accept: _text("ok\n"),
            "/readyz": lambda _accept: self._ready(),
            "/status.json": lambda _accept: AdminAnswer(orjson.dumps(self.status()), "application/json"),
            "/status": lambda _accept: AdminAnswer(_page(self.status()).encode(), "text/html; charset=utf-8"),
        }

    def status(self) -> dict[str, Any]:
        """What the status page shows."""
        fleet = self._fleet
        return {
            "version": self._version,
            "is_draining": self._is_draining(),
            "inflight_requests": fleet.ledger.total_inflight,
            "backends": [
                {
                    "name": backend.name,
                    "is_up": fleet.health.is_up(backend.name),
                    "inflight_requests": fleet.ledger.inflight(backend.name),
                    "models": fleet.models.of(backend.name),
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


def _page(status: dict[str, Any]) -> str:
    rows = "".join(_row(backend) for backend in status["backends"])
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>"
        "<title>Tidegate</title><style>body{font:16px system-ui;margin:2em}td,th{padding:.3em 1em;text-align:left}"
        ".down{color:#b00}</style>"
        f"<h1>Tidegate {html.escape(status['version'])}</h1>"
        f"<p>{status['inflight_requests']} requests in flight{', draining' if status['is_draining'] else ''}</p>"
        f"<table><tr><th>backend<th>state<th>in flight<th>models</tr>{rows}</table></html>"
    )


def _row(backend: dict[str, Any]) -> str:
    state = "up" if backend["is_up"] else "down"
    models: Sequence[str] = backend["models"]
    return (
        f"<tr><td>{html.escape(backend['name'])}<td class={state}>{state}<td>{backend['inflight_requests']}"
        f"<td>{html.escape(', '.join(models))}</tr>"
    )
