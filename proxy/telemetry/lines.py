"""Hands log lines to a thread that writes them, so that a blocked pipe or a full disk never holds up the event loop.

Fed by `logs.py`. Never waits on the caller's side and never keeps more than its bound.
"""

import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

MAX_LINES = 10_000
_LINES_A_WRITE = 2_000
_GATHER_S = 0.1
"""A line shows up this much later at most; each wake-up of the thread takes the interpreter from the event loop."""


class LineWriter:
    """A queue of lines and the thread behind it. Holds `max_lines` (and one write's worth); further ones are dropped.

    Args:
        write: writes all of the bytes, waiting as long as it must; an OSError drops them.
    """

    def __init__(self, write: Callable[[bytes], None], *, max_lines: int = MAX_LINES) -> None:
        self._write = write
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_closed = False
        self._closing = threading.Event()
        self._dropped_lines = 0
        # A daemon: a reader that has stopped reading must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<LineWriter: {len(self._lines)} lines wait, {self._dropped_lines} dropped>"

    @property
    def dropped_lines(self) -> int:
        """Lines thrown away since the start: queue full, writer closed, or write failed."""
        return self._dropped_lines

    def put(self, line: bytes) -> None:
        """Queue one line, newline included."""
        with self._lock:
            if self._is_closed or len(self._lines) >= self._max_lines:
                self._dropped_lines += 1
                return
            self._lines.append(line)
            if len(self._lines) == 1:
                self._changed.notify()

    def drop(self) -> None:
        """Count a line that could not even be made."""
        with self._changed:
            self._dropped_lines += 1

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for at most `timeout_s` seconds; says whether everything was written."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._closing.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while lines := self._take():
            try:
                self._write(b"".join(lines))
            except (OSError, ValueError):  # ValueError: the stream has been closed
                with self._changed:
                    self._dropped_lines += len(lines)

    def _take(self) -> list[bytes]:
        """The next lines; none at all once closed and empty."""
        with self._changed:
            while not self._lines and not self._is_closed:
                self._changed.wait()
        # Waking a thread for every line would cost the event loop more than making the line does.
        self._closing.wait(_GATHER_S)
        with self._changed:
            return [self._lines.popleft() for _ in range(min(len(self._lines), _LINES_A_WRITE))]


def write_to(stream: IO[str]) -> Callable[[bytes], None]:
    """How bytes get into this stream: past its buffer when it has a file descriptor.

    The interpreter flushes its standard streams when it ends and aborts when a stuck thread holds one's lock.
    """
    try:
        stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return lambda data: _write_text(stream, data)
    # Asked for again each time: the number of a closed file may by then belong to somebody's connection.
    return lambda data: _write_descriptor(stream.fileno(), data)


def _write_text(stream: IO[str], data: bytes) -> None:
    stream.write(data.decode())
    stream.flush()


def _write_descriptor(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # a terminal that another program has set so
            select.select([], [descriptor], [])
