"""Which backend holds a stored response (`/v1/responses` keeps them in one engine's memory).

Written and read by dispatch. Bounded: the oldest entry goes when it is full, and entries expire.
"""

from collections import OrderedDict


class StoredResponses:
    """Response id to backend name.

    Args:
        capacity: entries kept at most.
        ttl_s: seconds after which an entry is forgotten.
    """

    def __init__(self, *, capacity: int = 50_000, ttl_s: float = 3_600.0) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._entries: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def remember(self, response_id: str, backend_name: str, now: float) -> None:
        """A backend answered with this response id."""
        self._entries.pop(response_id, None)
        self._entries[response_id] = (backend_name, now)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def backend_of(self, response_id: str, now: float) -> str | None:
        """The backend that holds a response, or None when that is unknown or too long ago."""
        entry = self._entries.get(response_id)
        if entry is None:
            return None
        name, at = entry
        if now - at > self._ttl_s:
            del self._entries[response_id]
            return None
        return name

    def __len__(self) -> int:
        return len(self._entries)
