"""Reads usage, first token, token gaps and the ending off an answer while its bytes pass, without holding them.

Owned by one relay. It keeps the first and the last few kilobytes and nothing else, looks at what passed in batches, and
parses only at the end: what a chunk costs on the way is one append.
"""

import re
from typing import Any, Final

import orjson

from proxy.core.gaps import GapCounter
from proxy.core.requests import Route, StreamEnd, Usage
from proxy.core.turns import StopReason

_HEAD_BYTES: Final = 2_048
"""Enough for `message_start` or `response.created` up to the id."""
_TAIL_BYTES: Final = 8_192
"""Enough for the last content event, the usage event and the terminal one."""

LOOK_AFTER: Final = 64
"""A token stream is looked at every so many chunks; at sixteen each chunk cost 1 to 2 % more."""
LARGE_BYTES: Final = 1_024
"""A chunk above this is looked at with what came before it, so that at most 64 kB wait."""

_STOP: Final = re.compile(rb'"(?:finish_reason|stop_reason)": ?"([a-z_]{1,20})"')
_STOPS: Final = {
    b"tool_calls": StopReason.TOOL_USE,
    b"tool_use": StopReason.TOOL_USE,
    b"stop": StopReason.END_TURN,
    b"end_turn": StopReason.END_TURN,
}

# A raw newline cannot stand inside a JSON string, so a marker after one is the protocol's and never the model's text.
_TERMINAL: Final[dict[StreamEnd, tuple[bytes, ...]]] = {
    StreamEnd.NONE: (),
    StreamEnd.DONE: (b"\ndata: [DONE]", b"\ndata:[DONE]"),
    StreamEnd.MESSAGE_STOP: (b"\nevent: message_stop", b'\ndata: {"type":"message_stop"'),
    StreamEnd.RESPONSE_COMPLETED: (
        b"\nevent: response.completed",
        b"\nevent: response.incomplete",
        b"\nevent: response.failed",
    ),
}
_ERROR_EVENT: Final = (b"\nevent: error", b'\ndata: {"error"', b'\ndata:{"error"')
# Chat and completion streams begin with the first token; the other two announce themselves before it.
_FIRST_TOKEN: Final[dict[StreamEnd, bytes]] = {
    StreamEnd.NONE: b"data:",
    StreamEnd.DONE: b"data:",
    StreamEnd.MESSAGE_STOP: b"event: content_block_",
    StreamEnd.RESPONSE_COMPLETED: b".delta",
}


class AnswerReader:
    """What one answer says about itself. Bounded: two windows of a few kilobytes, whatever the answer's length.

    Attributes:
        awaits_first_token: an event stream whose first token has not passed.
        token_events: events since the first token, a batch behind; about one a token.
        unread: what has passed and was not looked at yet, each piece with its time; whoever adds to it instead of
            calling `feed` calls `look` as `feed` does.
    """

    __slots__ = (
        "_body_bytes", "_first_token_at", "_first_token_marker", "_gaps", "_head", "_head_bytes", "_is_event_stream",
        "_route", "_tail", "awaits_first_token", "token_events", "unread",
    )  # fmt: skip

    def __init__(self, route: Route, *, is_event_stream: bool) -> None:
        self._route = route
        self._is_event_stream = is_event_stream
        self._first_token_marker = _FIRST_TOKEN[route.stream_end]
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._tail = b""
        self.unread: list[tuple[float, bytes]] = []
        self._body_bytes = 0
        self._first_token_at: float | None = None
        self._gaps = GapCounter()
        self.awaits_first_token = is_event_stream
        self.token_events = 0

    def feed(self, data: bytes, now: float) -> None:
        """Body bytes passed at `now` (monotonic seconds). They are looked at a batch later: that costs a third."""
        self.unread.append((now, data))
        if len(self.unread) >= LOOK_AFTER or len(data) > LARGE_BYTES or self.awaits_first_token:
            self.look()

    def look(self) -> None:
        """Look at what has passed since the last time."""
        if not self.unread:
            return
        tail = [self._tail]
        for now, data in self.unread:
            size = len(data)
            self._body_bytes += size
            if self._is_event_stream:
                if self._first_token_at is None and self._first_token_marker in data:
                    self._first_token_at = now
                    self.awaits_first_token = False
                if self._first_token_at is not None:
                    self._gaps.mark(now)
                    self.token_events += data.count(b"data:")
            if self._head_bytes < _HEAD_BYTES:
                self._head.append(data[:_HEAD_BYTES])
                self._head_bytes += size
            tail.append(data if size <= _TAIL_BYTES else data[-_TAIL_BYTES:])
        self.unread.clear()
        self._tail = b"".join(tail)[-_TAIL_BYTES:]

    @property
    def is_event_stream(self) -> bool:
        """Whether the answer is an event stream."""
        return self._is_event_stream

    @property
    def body_bytes(self) -> int:
        """Bytes that have passed."""
        self.look()
        return self._body_bytes

    @property
    def first_token_at(self) -> float | None:
        """When the first generated token passed, in monotonic seconds, or None."""
        self.look()
        return self._first_token_at

    @property
    def gaps(self) -> GapCounter:
        """The pauses between token events."""
        self.look()
        return self._gaps

    @property
    def is_at_event_boundary(self) -> bool:
        """Whether the bytes so far end with a complete event, so that another one may follow."""
        if not self._is_event_stream:
            return False
        end = self._end()
        return not end or end.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def has_ended(self) -> bool:
        """Whether an event stream reached its terminal event; true for anything that is not one."""
        markers = _TERMINAL[self._route.stream_end]
        if not self._is_event_stream or not markers:
            return True
        window = b"\n" + self._end()
        return any(marker in window for marker in markers)

    @property
    def has_error_event(self) -> bool:
        """Whether the backend reported an error inside the stream."""
        if not self._is_event_stream:
            return False
        window = b"\n" + self._end()
        return any(marker in window for marker in _ERROR_EVENT)

    def usage(self) -> Usage:
        """Token counts in whichever of the three layouts the engine used; what it did not say stays None."""
        counts = _usage_object(self._end(), last=True)
        if self._is_event_stream or self._body_bytes > _TAIL_BYTES:
            # Streams announce the prompt at their start; a whole answer says everything in one place.
            start = _usage_object(self._start(), last=False)
            if self._is_event_stream:
                start.pop("output_tokens", None)  # an announcement's zero is not a count
                if _counts_cached_twice(start, counts):
                    counts["input_tokens"] -= counts["cache_read_input_tokens"]
            counts = {**start, **counts}
        return _normalised(counts)

    def stop(self) -> StopReason:
        """Why the answer ended, as far as it says so."""
        end = self._end()
        if self._route.stream_end is StreamEnd.RESPONSE_COMPLETED:
            if b'"type":"function_call"' in end:
                return StopReason.TOOL_USE
            return StopReason.END_TURN if b'"status":"completed"' in end else StopReason.OTHER
        found = _STOP.findall(end)
        return _STOPS.get(found[-1], StopReason.OTHER) if found else StopReason.OTHER

    def response_id(self) -> str | None:
        """The id of the response that the answer carries, if it carries one that may be stored."""
        if self._route.stream_end is not StreamEnd.RESPONSE_COMPLETED:
            return None
        start = self._start()
        at = start.find(b'"id":"resp_')
        if at < 0:
            return None
        found = start[at + 6 : at + 6 + 140].split(b'"', 1)[0]
        return found.decode("ascii", "replace")

    def _start(self) -> bytes:
        self.look()
        return b"".join(self._head)

    def _end(self) -> bytes:
        self.look()
        return self._tail


def _usage_object(window: bytes, *, last: bool) -> dict[str, Any]:
    """The first or last complete `"usage": {…}` in a window, without its nulls.

    The model's text cannot fake it: a quote inside a JSON string is escaped.
    """
    at = window.rfind(b'"usage":') if last else window.find(b'"usage":')
    if at < 0:
        return {}
    begin = window.find(b"{", at, at + 16)
    end = _object_end(window, begin) if begin >= 0 else -1
    if end < 0:
        return {}
    try:
        parsed = orjson.loads(window[begin:end])
    except orjson.JSONDecodeError:
        return {}
    return {name: value for name, value in parsed.items() if value is not None}


def _object_end(window: bytes, begin: int) -> int:
    """The index after the brace that closes the one at `begin`; -1 when it lies outside. Usage holds no strings."""
    depth, at = 0, begin
    while (close := window.find(b"}", at)) >= 0:
        depth += window.count(b"{", at, close) - 1
        at = close + 1
        if depth == 0:
            return at
    return -1


def _counts_cached_twice(start: dict[str, Any], end: dict[str, Any]) -> bool:
    """Whether an engine's input holds the cached part too, unlike Anthropic's.

    Before anything is known of the cache the start of a stream announces the whole prompt; an input that is as large at
    the end has nothing taken off.
    """
    announced, cached = _count(start.get("input_tokens")), _count(end.get("cache_read_input_tokens"))
    says_nothing_of_cache = "cache_read_input_tokens" not in start and "cache_creation_input_tokens" not in start
    is_as_large = announced is not None and end.get("input_tokens") == announced
    return says_nothing_of_cache and is_as_large and 0 < (cached or 0) <= (announced or 0)


def _normalised(counts: dict[str, Any]) -> Usage:
    """One shape for three: OpenAI chat, OpenAI responses, Anthropic messages (its input leaves out the cached part)."""
    if "prompt_tokens" in counts:
        details = counts.get("prompt_tokens_details") or {}
        return Usage(
            prompt_tokens=_count(counts["prompt_tokens"]),
            cached_tokens=_count(details.get("cached_tokens")),
            completion_tokens=_count(counts.get("completion_tokens")),
        )
    prompt = _count(counts.get("input_tokens"))
    output = _count(counts.get("output_tokens"))
    if "input_tokens_details" in counts:
        details = counts["input_tokens_details"] or {}
        return Usage(prompt_tokens=prompt, cached_tokens=_count(details.get("cached_tokens")), completion_tokens=output)
    cached = _count(counts.get("cache_read_input_tokens"))
    created = _count(counts.get("cache_creation_input_tokens"))
    if prompt is not None and (cached is not None or created is not None):
        # vLLM leaves out whichever of the two is zero; its input is then the part that is neither.
        prompt += (cached or 0) + (created or 0)
        cached = cached or 0
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=output)


def _count(value: object) -> int | None:
    """A token count, or None for anything that is not a non-negative whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
