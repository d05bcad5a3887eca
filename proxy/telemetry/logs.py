"""Log lines: what one looks like and how values are made safe to print. The only place with wall-clock time.

Called by the recorder, by probes and by the command line. Never waits, never raises, and is never given a header, a
prompt or a key.
"""

import logging
import os
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any, Literal, TypeAlias

import orjson
import structlog.dev

from proxy.telemetry.lines import LineWriter, write_to

LogFormat: TypeAlias = Literal["auto", "json", "console"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

MAX_VALUE_CHARS = 200
MAX_TRACE_CHARS = 4000
MAX_ITEMS = 20
FLUSH_S = 2.0
"""How long the last lines may take when the proxy stops and nobody reads them."""

_SAFE_KINDS = frozenset({bool, float, type(None)})
_LEVELS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class EventLog:
    """Writes events as lines. Made by `configure`.

    Lines are put together here rather than by structlog's chain of processors: there is one line for every request, and
    the chain costs twice what the line itself does.
    """

    def __init__(self, writer: LineWriter, render: Callable[[dict[str, Any]], bytes], threshold: int) -> None:
        self._writer = writer
        self._render = render
        self._threshold = threshold
        self._second = 0
        self._second_text = ""
        self._library_handler = _LibraryHandler(self)
        logging.getLogger().addHandler(self._library_handler)

    def __repr__(self) -> str:
        return f"<EventLog {self._writer!r}>"

    @property
    def dropped_lines(self) -> int:
        """Lines thrown away since the start because they could not be written."""
        return self._writer.dropped_lines

    def event(self, event: str, *, level: LogLevel = "info", **fields: Any) -> None:
        """Write one line.

        Args:
            event: `noun.verb`, a constant.
            level: how bad it is.
            fields: plain values. None is left out; text is cut at 200 characters and what cannot be printed is escaped.
        """
        line = self.begin(event, level)
        if line is None:
            return
        try:
            line.update(_printable_fields(fields))
        except Exception:  # noqa: BLE001 - see `write`
            self._writer.drop()
            return
        self.write(line)

    def begin(self, event: str, level: LogLevel) -> dict[str, Any] | None:
        """The beginning of a line that the caller fills and writes; None where no such line is wanted.

        Args:
            event: `noun.verb`, a constant.
            level: how bad it is.
        """
        if _LEVELS[level] < self._threshold:
            return None
        return {"timestamp": self._timestamp(), "level": level, "event": event}

    def write(self, line: dict[str, Any]) -> None:
        """Write a line that `begin` began, with values that were made or checked by the caller: they are not cleaned.

        Args:
            line: short printable text, numbers, booleans, behind what it began with.
        """
        try:
            self._writer.put(self._render(line) + b"\n")
        except Exception:  # noqa: BLE001 - no request may fail because its log line could not be made
            self._writer.drop()

    def _timestamp(self) -> str:
        now = time.time()  # noqa: TID251 - the one place for it
        second = int(now)
        if second != self._second:  # the date is put together once a second
            self._second = second
            self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._second_text}.{int((now - second) * 1e6):06d}Z"

    def close(self) -> bool:
        """Write what waits, for at most two seconds; says whether everything was written."""
        logging.getLogger().removeHandler(self._library_handler)
        return self._writer.close(FLUSH_S)


def configure(log_format: LogFormat, log_level: LogLevel, stream: IO[str]) -> EventLog:
    """Start logging to a stream (stderr, in both formats: stdout is for what a command was asked to print).

    Warnings of libraries and of asyncio, which use the standard library's logging, become `library.warned` lines.

    Args:
        log_format: `auto` is console on a terminal and JSON elsewhere.
        log_level: lowest level that is written.
        stream: used from a thread until the log is closed.
    """
    is_console = log_format == "console" or (log_format == "auto" and stream.isatty())
    render = _console(has_color=stream.isatty() and "NO_COLOR" not in os.environ) if is_console else orjson.dumps
    return EventLog(LineWriter(write_to(stream)), render, _LEVELS[log_level])


def _console(*, has_color: bool) -> Callable[[dict[str, Any]], bytes]:
    renderer = structlog.dev.ConsoleRenderer(colors=has_color, sort_keys=False)
    return lambda line: renderer(None, "", line).encode()


class _LibraryHandler(logging.Handler):
    """Turns records of the standard library's logging into events."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit their format; the caller's fault, not worth a stop
            message = str(record.msg)
        fields = {"logger": record.name, "message": message}
        if record.exc_info and record.exc_info[1]:
            trace = "".join(traceback.format_exception(record.exc_info[1]))
            fields["trace"] = " | ".join(part.strip() for part in trace.splitlines())[-MAX_TRACE_CHARS:]
        self._log.event("library.warned", level="error" if record.levelno >= logging.ERROR else "warning", **fields)


def _printable_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _text(value, MAX_TRACE_CHARS) if name == "trace" else printable(value)
        for name, value in fields.items()
        if value is not None
    }


def printable(value: Any) -> Any:
    """A value that is safe to print: text cut at 200 characters and escaped, odd kinds as their repr, escaped too."""
    kind = type(value)  # compared before isinstance: the common kinds first
    if kind is str:
        return value if len(value) <= MAX_VALUE_CHARS and value.isprintable() else _text(value)
    if kind in _SAFE_KINDS:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else "a number beyond 64 bits"
    if isinstance(value, Mapping):
        return {_text(str(key)): printable(item) for key, item in islice(value.items(), MAX_ITEMS)}
    return _text(str(value) if isinstance(value, str) else repr(value))


def _text(text: str, limit_chars: int = MAX_VALUE_CHARS) -> str:
    if len(text) > limit_chars:
        text = text[: limit_chars - 3] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
