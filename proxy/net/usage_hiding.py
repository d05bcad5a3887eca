"""A client's side that does not see the event of usage which the proxy asked for. Used by the relay, for such streams.

The relay reads the answer itself, usage included; this stands between it and the client, so that no other stream pays.
"""

from collections.abc import Callable, Iterable

from proxy.dialects.usage_events import UsageFilter
from proxy.net.client_side import ClientSide


class UsageHidingClient:
    """Passes a stream on without the event of usage; see `ClientSide` for what each method does."""

    __slots__ = ("_client", "_filter")

    def __init__(self, client: ClientSide) -> None:
        self._client = client
        self._filter = UsageFilter()

    @property
    def is_gone(self) -> bool:
        """Whether the client has left or been cut off."""
        return self._client.is_gone

    @property
    def is_started(self) -> bool:
        """Whether bytes of an answer have been written."""
        return self._client.is_started

    @property
    def is_complete(self) -> bool:
        """Whether the whole answer has been written."""
        return self._client.is_complete

    @property
    def has_stalled(self) -> bool:
        """Whether the client was cut off since it stopped reading."""
        return self._client.has_stalled

    @property
    def is_open_early(self) -> bool:
        """Whether the stream was opened before there was an answer."""
        return self._client.is_open_early

    def ping(self, event: bytes) -> bool:
        """Write an event of our own; nothing of the answer is kept back between two of its events."""
        return self._client.ping(event)

    def answer(self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Give a whole answer."""
        self._client.answer(status, reason, headers, body)

    def start(
        self, status: int, reason: bytes, headers: Iterable[tuple[bytes, bytes]], content_length: int | None
    ) -> None:
        """Begin an answer."""
        self._client.start(status, reason, headers, content_length)

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
