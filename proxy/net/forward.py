"""Makes one attempt: one request to one backend over the lean client, its answer relayed (`core.ports.Forwarder`).

The only place that turns a `RequestView` into bytes on a wire; a reused connection that turns out to be closed is
replaced once by a fresh one, and nothing else is ever sent twice.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.core.backends import Backend
from proxy.core.errors import Retry, UpstreamError
from proxy.core.exchange import Exchange
from proxy.core.ports import Clock, Progress
from proxy.core.requests import AttemptResult, Dialect, RequestView
from proxy.net.client_side import ClientSide
from proxy.net.connections import ConnectionPool
from proxy.net.header_rules import header_lines
from proxy.net.keepalive import KeepAlive
from proxy.net.relay import Relay
from proxy.net.upstream import UpstreamTimeouts

_ANTHROPIC: Final = Dialect.ANTHROPIC


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    """What an attempt needs to know beyond the request.

    Attributes:
        answer_buffer_bytes: how much of a non-2xx answer is held to be looked at.
        has_receipts: whether answers carry `x-tidegate-*` headers.
    """

    timeouts: UpstreamTimeouts
    answer_buffer_bytes: int
    has_receipts: bool


class HttpForwarder:
    """Forwards over HTTP/1.1, one pool of connections a backend.

    Args:
        keep_alive: looks after answers while they are passed on.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        settings: ForwardSettings,
        clock: Clock,
        keep_alive: KeepAlive,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._keep_alive = keep_alive
        self._clock = clock
        self._pools = {backend.name: ConnectionPool(backend, settings.timeouts, clock, tls) for backend in backends}

    async def forward(
        self,
        view: RequestView,
        backend: Backend,
        client: ClientSide,
        exchange: Exchange,
        progress: Progress | None = None,
        *,
        may_move: Callable[[], bool] = bool,
    ) -> AttemptResult:
        """Make one attempt; see `core.ports.Forwarder`."""
        head = request_head(view, backend)
        receipt = self._receipt(view, backend, exchange)
        pool = self._pools[backend.name]
        connection = await pool.acquire()
        while True:
            relay = Relay(
                view,
                client,
                connection,
                receipt=receipt,
                answer_buffer_bytes=self._settings.answer_buffer_bytes,
                progress=progress,
                may_move=may_move,
            )
            if exchange.sent_at is None:
                exchange.sent_at = self._clock()
            if view.is_stream:
                self._keep_alive.add(relay)
            try:
                connection.send(head, view.body, relay)
                await relay.finished
                return relay.result()
            except UpstreamError as error:
                if error.retry is not Retry.FRESH_CONNECTION:
                    raise
            except asyncio.CancelledError:
                exchange.result = relay.cut_short()
                if client.is_started or client.is_gone:
                    exchange.finish_with(exchange.result)  # else whoever cancelled it still owes an answer
                raise
            finally:
                if view.is_stream:
                    self._keep_alive.discard(relay)
                pool.release(connection)
            # A fresh connection cannot be stale, so this loop turns at most once.
            exchange.count_retry("stale_connection")
            try:
                connection = await pool.acquire(fresh=True)
            except UpstreamError as error:
                # It was sent once already, and may be what ended the backend: no other one gets it.
                raise UpstreamError(error.outcome, str(error), is_refused=error.is_refused) from error

    def close_expired(self) -> None:
        """Close idle connections that are too old, on every backend."""
        now = self._clock()
        for pool in self._pools.values():
            pool.close_expired(now)

    def close(self) -> None:
        """Close every idle connection."""
        for pool in self._pools.values():
            pool.close()

    def _receipt(self, view: RequestView, backend: Backend, exchange: Exchange) -> tuple[tuple[bytes, bytes], ...]:
        request_id = view.request_id.encode("ascii")
        receipt = [(b"x-request-id", request_id)]
        if view.route.dialect is _ANTHROPIC:
            receipt.append((b"request-id", request_id))
        if self._settings.has_receipts:
            receipt += ((b"x-tidegate-backend", backend.name.encode("ascii")), *view.receipts)
            if exchange.admission is not None and exchange.queue_wait_s is not None:
                receipt.append((b"x-tidegate-admission", exchange.admission.encode("ascii")))
                receipt.append((b"x-tidegate-prefix", exchange.prefix.encode("ascii")))
                receipt.append((b"x-tidegate-queue-ms", b"%d" % (1_000 * exchange.queue_wait_s)))
        return tuple(receipt)


def request_head(view: RequestView, backend: Backend) -> bytes:
    """The head of the request to a backend: ours, and the client's target and headers as they came."""
    ours = (
        f"{view.method} {backend.path_prefix}{view.target} HTTP/1.1\r\nHost: {backend.authority}\r\n"
        f"x-request-id: {view.request_id}\r\n"
    )
    if backend.api_key is not None:
        ours += f"Authorization: Bearer {backend.api_key}\r\n"
    if view.body or view.method == "POST":
        ours += f"Content-Length: {len(view.body)}\r\n"
    return b"%b%b\r\n" % (ours.encode("utf-8"), header_lines(view.headers))


async def close_expired_for_ever(forwarder: HttpForwarder, interval_s: float = 1.0) -> None:
    """Close connections that idle too long, until cancelled."""
    while True:
        await asyncio.sleep(interval_s)
        forwarder.close_expired()
