"""Reads usage, first token, token gaps and the ending off an answer while its bytes pass, without holding them.

Owned by one relay. It keeps the first and the last few kilobytes and nothing else, looks at whole chunks in batches,
and parses only at the end: what a chunk costs on the way is two appends.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from proxy.core.chunks import BODY_STARTS
from proxy.core.gaps import GapCounter
from proxy.core.requests import Route, StreamEnd, Usage
from proxy.core.turns import StopReason

_HEAD_BYTES: Final = 2_048
"""Enough for `message_start` or `response.created` up to the id."""
_TAIL_BYTES: Final = 8_192
"""Enough for the last content event, the usage event and the terminal one."""

_MESSAGES: Final = StreamEnd.MESSAGE_STOP
_RESPONSES: Final = StreamEnd.RESPONSE_COMPLETED
_OTHER: Final = StopReason.OTHER
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


_NO_GAPS: Final = GapCounter()
"""Of answers that come whole; never marked."""


class AnswerReader:
    """What one answer says about itself. Bounded: two windows of a few kilobytes, whatever the answer's length.

    Attributes:
        is_event_stream: whether the answer is an event stream.
        awaits_first_token: an event stream whose first token has not passed.
        first_token_at: when the first generated token passed, in monotonic seconds, or None.
        token_events: events since the first token, whole chunks for one each; about one a token.
        gaps: the pauses between token events.
        body_bytes: how many have passed.
        chunks: whole chunks that have passed since the last look, framing included; whoever adds to it adds to `times`
            too, and calls `look` before there are many, and before anything else is asked.
        times: when each of them passed, in monotonic seconds.
    """

    __slots__ = (
        "_first_token_marker", "_head", "_route", "_tail", "awaits_first_token", "body_bytes", "chunks",
        "first_token_at", "gaps", "is_event_stream", "times", "token_events",
    )  # fmt: skip

    def __init__(self, route: Route, *, is_event_stream: bool) -> None:
        self._route = route
        self.is_event_stream = is_event_stream
        self._first_token_marker = _FIRST_TOKEN[route.stream_end]
        self._head = b""
        self._tail = b""
        self.chunks: list[bytes] = []
        self.times: list[float] = []
        self.body_bytes = 0
        self.first_token_at: float | None = None
        self.gaps = GapCounter() if is_event_stream else _NO_GAPS
        self.awaits_first_token = is_event_stream
        self.token_events = 0

    def feed(self, data: bytes, now: float) -> None:
        """Body bytes, without framing, passed at `now` (monotonic seconds)."""
        if self.chunks:
            self.look()
        self._take(data, (now,), data.count(b"data:"))

    def look(self) -> None:
        """Look at the chunks that have passed since the last time."""
        chunks, times = self.chunks, self.times
        if chunks:
            starts = BODY_STARTS
            self._take(b"".join([chunk[starts[len(chunk)] : -2] for chunk in chunks]), times, len(chunks))
            chunks.clear()
            times.clear()

    def _take(self, data: bytes, times: Sequence[float], events: int) -> None:
        self.body_bytes += len(data)
        if self.is_event_stream:
            if self.awaits_first_token and self._first_token_marker in data:
                self.first_token_at = times[0]
                self.awaits_first_token = False
            if not self.awaits_first_token:
                self.gaps.mark(times)
                self.token_events += events
        if len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        self._tail = (self._tail + data)[-_TAIL_BYTES:] if len(data) < _TAIL_BYTES else data[-_TAIL_BYTES:]

    @property
    def is_at_event_boundary(self) -> bool:
        """Whether the bytes so far end with a complete event, so that another one may follow."""
        if not self.is_event_stream:
            return False
        end = self._tail
        return not end or end.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def has_ended(self) -> bool:
        """Whether an event stream reached its terminal event; true for anything that is not one."""
        markers = _TERMINAL[self._route.stream_end]
        if not self.is_event_stream or not markers:
            return True
        window = b"\n" + self._tail
        return any(marker in window for marker in markers)

    @property
    def has_error_event(self) -> bool:
        """Whether the backend reported an error inside the stream."""
        if not self.is_event_stream:
            return False
        window = b"\n" + self._tail
        return any(marker in window for marker in _ERROR_EVENT)

    def usage(self) -> Usage:
        """Token counts in whichever of the three layouts the engine used; what it did not say stays None."""
        counts = _usage_object(self._tail, last=True)
        if self.is_event_stream or self.body_bytes > _TAIL_BYTES:
            # Streams announce the prompt at their start; a whole answer says everything in one place.
            start = _usage_object(self._head, last=False)
            if self.is_event_stream:
                start.pop("output_tokens", None)  # an announcement's zero is not a count
                if _counts_cached_twice(start, counts):
                    counts["input_tokens"] -= counts["cache_read_input_tokens"]
            counts = {**start, **counts}
        return _normalised(counts)

    def stop(self) -> StopReason:
        """Why the answer ended, as far as it says so."""
        end = self._tail
        if self._route.stream_end is _RESPONSES:
            if b'"type":"function_call"' in end:
                return StopReason.TOOL_USE
            return StopReason.END_TURN if b'"status":"completed"' in end else StopReason.OTHER
        field = b'"stop_reason":' if self._route.stream_end is _MESSAGES else b'"finish_reason":'
        return _STOPS.get(_last_text(end, field), _OTHER)

    def response_id(self) -> str | None:
        """The id of the response that the answer carries, if it carries one that may be stored."""
        if self._route.stream_end is not _RESPONSES:
            return None
        start = self._head
        at = start.find(b'"id":"resp_')
        if at < 0:
            return None
        found = start[at + 6 : at + 6 + 140].split(b'"', 1)[0]
        return found.decode("ascii", "replace")


def _last_text(window: bytes, field: bytes) -> bytes:
    """The last short text that a field has in a window; nulls are passed over."""
    at = window.rfind(field + b'"')
    if at < 0:
        at = window.rfind(field + b' "')
    return window[at + len(field) : at + len(field) + 24].split(b'"', 2)[1] if at >= 0 else b""


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
        parsed: dict[str, Any] = orjson.loads(window[begin:end])
    except orjson.JSONDecodeError:
        return {}
    if None in parsed.values():
        return {name: value for name, value in parsed.items() if value is not None}
    return parsed


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
    return value if type(value) is int and value >= 0 else None
