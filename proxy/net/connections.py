"""The connections to one backend that are idle now, and how new ones are made. Called by `net.forward` alone."""

import asyncio
import os
import ssl
from collections import deque

from proxy.core.backends import Backend
from proxy.core.errors import Retry, UpstreamError
from proxy.core.outcomes import Outcome
from proxy.core.ports import Clock
from proxy.net.upstream import UpstreamConnection, UpstreamTimeouts


class ConnectionPool:
    """The idle connections of one backend. No limit on open ones: admission is what limits, not a hidden queue."""

    def __init__(
        self, backend: Backend, timeouts: UpstreamTimeouts, clock: Clock, tls: ssl.SSLContext | None = None
    ) -> None:
        self._backend = backend
        self._timeouts = timeouts
        self._clock = clock
        self._tls = (tls or ssl.create_default_context()) if backend.is_tls else None
        self._idle: deque[UpstreamConnection] = deque()

    async def acquire(self, *, fresh: bool = False) -> UpstreamConnection:
        """A connection to send on.

        Args:
            fresh: do not reuse an idle one.

        Raises:
            UpstreamError: no connection within `connect_s`; nothing was sent, another backend may try.
        """
        now = self._clock()
        while self._idle and not fresh:
            connection = self._idle.pop()
            if self._is_usable(connection, now):
                connection.mark_reused()
                return connection
            connection.abort()
        return await self._connect()

    def release(self, connection: UpstreamConnection) -> None:
        """Take a connection back: kept when it can serve again, closed otherwise."""
        if connection.is_reusable:
            connection.resume_reading()
            connection.idle_since = self._clock()
            self._idle.append(connection)
        else:
            connection.abort()

    def close_expired(self, now: float) -> None:
        """Close the idle connections that are too old to be trusted."""
        kept = [connection for connection in self._idle if self._is_usable(connection, now)]
        for connection in set(self._idle).difference(kept):
            connection.abort()
        self._idle = deque(kept)

    def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.pop().abort()

    def _is_usable(self, connection: UpstreamConnection, now: float) -> bool:
        return (
            connection.is_reusable
            and now - connection.idle_since < self._timeouts.keepalive_s
            and now - connection.created_at < self._timeouts.max_age_s
        )

    async def _connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        backend = self._backend
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(loop, self._timeouts, self._clock),
                    backend.host,
                    backend.port,
                    ssl=self._tls,
                )
        except TimeoutError:
            message = f"no connection within {self._timeouts.connect_s:g} s"
            raise UpstreamError(Outcome.UPSTREAM_ERROR_CONNECT, message, retry=Retry.ELSEWHERE) from None
        except OSError as error:
            message = f"cannot connect: {os.strerror(error.errno) if error.errno else type(error).__name__}"
            raise UpstreamError(
                Outcome.UPSTREAM_ERROR_CONNECT,
                message,
                retry=Retry.ELSEWHERE,
                # Anything else may be our own lack of descriptors or ports.
                is_refused=isinstance(error, ConnectionRefusedError),
            ) from error
        return connection
