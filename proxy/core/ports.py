"""What the inner parts need from the outer ones, as small protocols: time, forwarding, recording."""

from collections.abc import Callable
from typing import Protocol

from proxy.core.requests import FinishedRequest

Clock = Callable[[], float]


class Recorder(Protocol):
    """Writes what happened; never raises, never waits."""

    def record(self, finished: FinishedRequest) -> None:
        """Take one request's final record."""
