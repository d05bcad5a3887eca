"""Takes the event of usage out of a stream whose client did not ask for it. Pure.

Only a whole event is judged; one that is not complete yet is kept back until it is, up to the size of such an event.
"""

import re
from typing import Final

import orjson

_BOUNDARY: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MAX_EVENT_BYTES: Final = 16_384
"""An event of usage has some hundred bytes. What is longer is something else, and is not kept back."""


class UsageFilter:
    """One stream. Bounded: at most one event of usage is kept back.

    Attributes:
        rest: bytes of an event that is not complete.
    """

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """More of the stream; what of it the client may have now."""
        data = self.rest + data
        end = max((data.rfind(mark) + len(mark) for mark in _marks(data)), default=0)
        whole, self.rest = data[:end], data[end:]
        if b'"usage"' in whole:
            whole = b"".join(event for event in _events(whole) if not _is_usage_alone(event))
        if len(self.rest) > _MAX_EVENT_BYTES:
            whole, self.rest = whole + self.rest, b""
        return whole

    def flush(self) -> bytes:
        """The stream has ended: what was kept back."""
        rest, self.rest = self.rest, b""
        return rest


def _marks(data: bytes) -> list[bytes]:
    return [mark for mark in (b"\r\n\r\n", b"\n\n", b"\r\r") if mark in data]


def _events(data: bytes) -> list[bytes]:
    events, at = [], 0
    for boundary in _BOUNDARY.finditer(data):
        events.append(data[at : boundary.end()])
        at = boundary.end()
    return [*events, data[at:]] if at < len(data) else events


def _is_usage_alone(event: bytes) -> bool:
    """Whether an event holds usage and no piece of an answer."""
    if not event.startswith(b"data:") or b'"usage"' not in event:
        return False
    try:
        parsed = orjson.loads(event[len(b"data:") :])
    except orjson.JSONDecodeError:
        return False
    return isinstance(parsed, dict) and parsed.get("choices") == [] and isinstance(parsed.get("usage"), dict)
