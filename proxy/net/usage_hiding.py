"""A stream towards a client without the event of usage which the proxy asked for. Used by the relay, for such streams.

The relay reads the answer itself, usage included; this stands between it and the client, so that no other stream pays.
"""

from collections.abc import Callable

from proxy.dialects.usage_events import UsageFilter
from proxy.net.client_side import ClientSide


class UsageHidingStream:
    """Passes a stream on without the event of usage; see `ClientSide` for what each method does."""

    __slots__ = ("_client", "_filter")

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._filter = UsageFilter()

    def write(self, body: bytes, *, is_last: bool = False) -> None:
        """Pass body bytes on, as far as their event is complete; at the end all that is left."""
        kept = self._filter.feed(body)
        self._client.write(kept + self._filter.flush() if is_last else kept, is_last=is_last)

    def pipe(self, _pieces: list[bytes], _times: list[float], _look: Callable[[], None]) -> None:
        """There is no short way: every chunk has to be looked at."""

    def break_off(self, last_words: bytes = b"") -> None:
        """End an answer that will not be completed, after what was kept back of it."""
        rest = self._filter.flush()
        if rest and not self._client.is_gone:
            self._client.write(rest)
        self._client.break_off(last_words)
