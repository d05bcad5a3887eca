"""Who holds what on which backend. Capacity is taken as a reservation and given back by closing it with an outcome.

Owned by the composition root, written by dispatch alone. Bounded by the requests in flight.
"""

from types import TracebackType
from typing import Self

from proxy.core.backends import Backend
from proxy.core.outcomes import Outcome


class Reservation:
    """What one request in flight holds. Leaving it unclosed closes it as aborted; closing twice changes nothing."""

    __slots__ = ("_ledger", "backend", "outcome")

    def __init__(self, ledger: "Ledger", backend: Backend) -> None:
        self._ledger = ledger
        self.backend = backend
        self.outcome: Outcome | None = None

    def close(self, outcome: Outcome) -> None:
        """Give back what is held."""
        if self.outcome is None:
            self.outcome = outcome
            self._ledger.give_back(self.backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.outcome is None:
            self.close(Outcome.ABORTED)

    def __repr__(self) -> str:
        return f"<Reservation {self.backend.name}: {self.outcome or 'open'}>"


class Ledger:
    """Requests in flight per backend."""

    def __init__(self) -> None:
        self._inflight: dict[str, int] = {}

    def reserve(self, backend: Backend) -> Reservation:
        """Take a place on a backend; use it as a context manager."""
        self._inflight[backend.name] = self._inflight.get(backend.name, 0) + 1
        return Reservation(self, backend)

    def inflight(self, backend_name: str) -> int:
        """Requests in flight on a backend."""
        return self._inflight.get(backend_name, 0)

    @property
    def total_inflight(self) -> int:
        """Requests in flight on all backends."""
        return sum(self._inflight.values())

    def give_back(self, backend: Backend) -> None:
        """End one reservation. Only `Reservation.close` calls this, once."""
        left = self._inflight[backend.name] - 1
        if left:
            self._inflight[backend.name] = left
        else:
            del self._inflight[backend.name]

    def __repr__(self) -> str:
        return f"<Ledger {self._inflight}>"
