"""Listens to what one engine publishes about its KV cache, asks again for what was missed. Decides nothing.

ZeroMQ: batches come on a SUB socket as topic, number, payload; a DEALER asks the replay address for everything from a
number on, and gets the same frames until a number of -1. Lost connections are made again by the library.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proxy.core.ports import Clock
from proxy.engines.kv_events import Batch, MalformedEventsError, parse_events
from proxy.state.event_order import Arrival, EventOrder

try:
    import zmq
    import zmq.asyncio
except ImportError:  # without the extra nobody gets as far as to listen: the configuration is refused
    pass

_BURST_S: Final = 0.002
"""So long at a time is spent on messages that are there; then whoever else waits for the event loop has its turn."""
_QUEUED_MESSAGES: Final = 1_000
"""Ours; 10 s of an engine at 100 steps a second. Beyond it they wait at the engine, which keeps 100,000."""
_LARGEST_BYTES: Final = 4 * 1024 * 1024
"""Of a message; a step of 16,384 prompt tokens has 80 kB. The library hangs up on what is larger."""
_REPLAY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class KvEventSettings:
    """Where an engine publishes; see `backends.kv_events`."""

    backend: str
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""


class KvEventListener:
    """One engine's events, in order and each once.

    Args:
        on_batch: told the backend's name and a batch.
        on_gap: told the backend's name and whether what was missed has been sent again; if not, or if the engine
            began anew, what was learned so far may be wrong.
        on_malformed: told the backend's name; a message that cannot be read is left out.
    """

    def __init__(
        self,
        settings: KvEventSettings,
        *,
        on_batch: Callable[[str, Batch], None],
        on_gap: Callable[[str, bool], None],
        on_malformed: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._on_batch = on_batch
        self._on_gap = on_gap
        self._on_malformed = on_malformed
        self._clock = clock
        self._order = EventOrder()
        self._context = zmq.asyncio.Context()

    def __repr__(self) -> str:
        return f"<KvEventListener {self._settings.endpoint}: {self._order!r}>"

    async def run(self) -> None:
        """Listen until cancelled."""
        socket = self._socket(zmq.SUB, self._settings.endpoint)
        try:
            socket.subscribe(self._settings.topic)
            waiting: zmq.Socket[bytes] = zmq.Socket.shadow(socket)
            while True:
                await socket.poll()
                await self._take_all(waiting)
        finally:
            self._context.destroy(linger=0)

    async def _take_all(self, waiting: "zmq.Socket[bytes]") -> None:
        until = self._clock() + _BURST_S
        while self._clock() < until:
            try:
                frames = waiting.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            await self._take(frames)
        await asyncio.sleep(0)

    async def _take(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            self._on_malformed(self._settings.backend)
            return
        number = int.from_bytes(frames[1], "big")
        arrival = self._order.see(number)
        if arrival is Arrival.GAP:
            self._on_gap(self._settings.backend, await self._fill(number))
            self._order.skip_to(number + 1)
        elif arrival is Arrival.RESTART:
            self._on_gap(self._settings.backend, False)
        self._pass_on(frames[2])

    def _pass_on(self, payload: bytes) -> None:
        try:
            batch = parse_events(payload)
        except MalformedEventsError:
            self._on_malformed(self._settings.backend)
        else:
            self._on_batch(self._settings.backend, batch)

    async def _fill(self, number: int) -> bool:
        """Get what is missing before this number; says whether all of it came."""
        address, first = self._settings.replay_endpoint, self._order.expected
        if address is None or first is None:
            return False
        socket = self._socket(zmq.DEALER, address)
        try:
            async with asyncio.timeout(_REPLAY_S):
                await socket.send_multipart([b"", first.to_bytes(8, "big")])
                while self._order.expected != number:
                    frames = await socket.recv_multipart()
                    # The number of the end is no one's next, like that of a batch before which others are missing.
                    if len(frames) < 3 or not self._order.see_replayed(int.from_bytes(frames[-2], "big")):
                        return False
                    self._pass_on(frames[-1])
                    await asyncio.sleep(0)  # thousands may be there at once
        except TimeoutError:
            return False
        finally:
            socket.close(linger=0)  # what it still holds is not needed: it comes on the other socket
        return True

    def _socket(self, kind: int, address: str) -> "zmq.asyncio.Socket":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, _QUEUED_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
        socket.setsockopt(zmq.IPV6, "[" in address)
        socket.connect(address)
        return socket
