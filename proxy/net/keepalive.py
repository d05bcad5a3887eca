"""Keeps streams that are silent from looking dead: one look a second at all of them, and nothing on the way of a chunk.

Owns the streams that are looked at; whoever adds one takes it out again. Each of them knows itself whether a ping may
stand where it is, because only its owner knows what has been written.
"""

import asyncio
from typing import Final, Protocol

from proxy.core.ports import Clock

_LONGEST_TICK_S: Final = 1.0
_TICKS_A_WAIT: Final = 10
"""A ping is late by a tenth of its interval at most."""


class QuietStream(Protocol):
    """What may fall silent towards a client."""

    def keep_alive(self, now: float, quiet_since: float) -> None:
        """Write a ping if nothing was written for too long and one may stand here. Never raises, never waits.

        Args:
            now: monotonic seconds.
            quiet_since: who has written nothing after this time has been silent for too long.
        """


class KeepAlive:
    """The streams of all clients that may need a ping.

    Args:
        after_s: seconds of silence until a ping; 0 for never.
        clock: monotonic seconds.
        shortest_wait_s: the shortest time that anybody measures by these looks, if shorter than `after_s`.
    """

    def __init__(self, after_s: float, clock: Clock, *, shortest_wait_s: float | None = None) -> None:
        self._after_s = after_s
        self._clock = clock
        shortest_s = after_s if shortest_wait_s is None else min(after_s, shortest_wait_s)
        self._tick_s = min(_LONGEST_TICK_S, shortest_s / _TICKS_A_WAIT)
        streams: set[QuietStream] = set()
        self._streams = streams
        self.add = streams.add
        """Have a stream looked at from now on."""
        self.discard = streams.discard
        """Never look at a stream again."""

    def __len__(self) -> int:
        """How many are looked at."""
        return len(self._streams)

    def look(self) -> None:
        """Let each stream say that it is alive, where it has been silent for too long."""
        now = self._clock()
        quiet_since = now - self._after_s
        for stream in tuple(self._streams):
            stream.keep_alive(now, quiet_since)

    async def run(self) -> None:
        """Look again and again until cancelled; not at all where pings are off."""
        while self._after_s:
            await asyncio.sleep(self._tick_s)
            self.look()
