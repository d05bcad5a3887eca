"""Client connections that check what they count: a dropped, cut or changed answer is a fault with its reason."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

import httptools

from tests.bench.fake_backend import ANSWER, EVENTS_BESIDE_TOKENS

_EVENT = b"data: {"
_DONE = b"data: [DONE]\n\n"
_KEPT_FAULTS = 10


class Tally:
    """What all connections of one load received."""

    def __init__(self) -> None:
        self.answers = self.events = self.reads = self.busy = 0
        self.faults: Counter[str] = Counter()
        self.settled = asyncio.Event()

    def fault(self, reason: str) -> None:
        """Count a fault; past a few kinds the rest are one."""
        if reason not in self.faults and len(self.faults) >= _KEPT_FAULTS:
            reason = "other faults"
        self.faults[reason] += 1

    def began(self) -> None:
        """A request was sent."""
        self.busy += 1
        self.settled.clear()

    def ended(self) -> None:
        """It was answered or lost."""
        self.busy -= 1
        if not self.busy:
            self.settled.set()


class Client(asyncio.Protocol):
    """One connection that asks for whole answers, one at a time."""

    def __init__(self, tally: Tally, request: bytes, answered: Callable[["Client"], None] | None = None) -> None:
        self.tally = tally
        self.request = request
        self.answered = answered
        self.parser = httptools.HttpResponseParser(self)
        self.is_busy = self.is_closed = False
        self.scheduled_s = 0.0
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class, the same methods

    def send(self) -> None:
        """Ask once."""
        if self.is_closed:
            return
        self.is_busy = True
        self.received = b""
        self.tally.began()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Parse; bytes that are not HTTP are a fault."""
        self.tally.reads += 1
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self.lost(f"not HTTP: {exc}")
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer that had not ended is lost."""
        self.is_closed = True
        self.lost(f"connection lost before the answer ended ({exc or 'closed'})")

    def close(self) -> None:
        """Leave, also in the middle of an answer."""
        self.is_busy = False
        self.transport.abort()

    def lost(self, reason: str) -> None:
        """Give up on the running answer, if there is one."""
        if self.is_busy:
            self.is_busy = False
            self.tally.fault(reason)
            self.tally.ended()

    def on_body(self, data: bytes) -> None:
        """Gather the answer."""
        self.received += data

    def on_message_complete(self) -> None:
        """Check it and say so."""
        self.is_busy = False
        status = self.parser.get_status_code()
        if status != 200:
            self.tally.fault(f"status {status}: {self.received[:120].decode(errors='replace')}")
        elif (wrong := self.wrong()) is not None:
            self.tally.fault(wrong)
        else:
            self.tally.answers += 1
        self.tally.ended()
        if self.answered is not None:
            self.answered(self)

    def wrong(self) -> str | None:
        """What is wrong with the finished answer."""
        return None if self.received == ANSWER else f"changed answer: {self.received[:120].decode(errors='replace')}"


class StreamClient(Client):
    """One connection that asks for one stream and counts its events; `received` is only the end of what came."""

    def __init__(self, tally: Tally, request: bytes, tokens: int) -> None:
        super().__init__(tally, request)
        self.expected = tokens + EVENTS_BESIDE_TOKENS
        self.events = 0

    def on_body(self, data: bytes) -> None:
        """Count events, also one whose mark is split between two reads."""
        across = len(_EVENT) - 1
        seen = data.count(_EVENT) + (self.received[-across:] + data[:across]).count(_EVENT)
        self.events += seen
        self.tally.events += seen
        self.received = data if len(data) >= len(_DONE) else self.received[-len(_DONE) :] + data

    def wrong(self) -> str | None:
        """A stream is right with all its events and the mark of its end."""
        if self.events != self.expected:
            return f"a stream with {self.events} of {self.expected} events"
        return None if self.received.endswith(_DONE) else "a stream without its [DONE]"
