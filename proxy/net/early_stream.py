"""Opens the stream of a client that waits for room, and keeps it alive until an answer goes on in it.

Made by `net.server`, one a streaming request that may have to wait; `net.keepalive` looks at it. What the client may
be told, and in which words, is decided in `dialects.early_stream`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from proxy.core.exchange import Exchange
from proxy.core.requests import Dialect, RequestView
from proxy.dialects.early_stream import EarlyMode, may_open_early, ping, refusal_event
from proxy.net.client_side import ClientSide

_STREAM_HEADERS: Final = ((b"Content-Type", b"text/event-stream; charset=utf-8"), (b"Cache-Control", b"no-cache"))


@dataclass(frozen=True, slots=True)
class EarlyStreamSettings:
    """When a stream is opened early.

    Attributes:
        mode: for whom.
        after_s: how long a request waits before, in seconds, so that short waits keep their status and headers.
    """

    mode: EarlyMode
    after_s: float


class EarlyStream:
    """One streaming request, for as long as no byte of its answer has been written."""

    __slots__ = ("_client", "_exchange", "_is_exempt", "_pinged_at", "_settings", "_view")

    def __init__(
        self, view: RequestView, client: ClientSide, exchange: Exchange, settings: EarlyStreamSettings
    ) -> None:
        self._view = view
        self._client = client
        self._exchange = exchange
        self._settings = settings
        self._is_exempt = False
        self._pinged_at: float | None = None

    def keep_alive(self, now: float, quiet_since: float) -> None:
        """Open the stream when the request has waited for long enough; then ping, until its answer has begun."""
        if self._client.is_started or self._is_exempt:
            return
        if self._pinged_at is None:
            waits_since = self._exchange.waits_since
            if waits_since is not None and now - waits_since >= self._settings.after_s:
                self._open(now)
        elif self._pinged_at <= quiet_since and self._client.ping(ping(self._view.route.dialect)):
            self._pinged_at = now

    def _open(self, now: float) -> None:
        view = self._view
        # Asked here and not when the request came: nearly none of them waits for so long.
        is_open = may_open_early(self._settings.mode, view.route, view.headers) and self._client.open_early(
            self._headers(), ping(view.route.dialect), partial(refusal_event, view.route)
        )
        self._is_exempt = not is_open
        if is_open:
            self._pinged_at = now
            self._exchange.is_open_early = True

    def _headers(self) -> tuple[tuple[bytes, bytes], ...]:
        request_id = self._view.request_id.encode("ascii")
        headers = (*_STREAM_HEADERS, (b"x-request-id", request_id))
        return (*headers, (b"request-id", request_id)) if self._view.route.dialect is Dialect.ANTHROPIC else headers
