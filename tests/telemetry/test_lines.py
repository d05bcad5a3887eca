import io
import os
import threading

import pytest

from proxy.telemetry.lines import LineWriter, write_to

LONG_S = 20.0
"""Only waited for when something is broken."""


class Gate:
    """A reader of the log that stands still until it is let go."""

    def __init__(self):
        self.written: list[bytes] = []
        self.is_asked = threading.Event()
        self.go = threading.Event()

    def write(self, data):
        """Take the data, once it may."""
        self.is_asked.set()
        assert self.go.wait(LONG_S)
        self.written.append(data)


def test_lines_are_written_in_order_and_all_of_them_at_the_end():
    """Closing writes what still waits."""
    written: list[bytes] = []
    writer = LineWriter(written.append)
    for number in range(2000):
        writer.put(b"%d\n" % number)

    assert writer.close(LONG_S)
    assert b"".join(written) == b"".join(b"%d\n" % number for number in range(2000))
    assert writer.dropped_lines == 0


def test_a_reader_that_stands_still_costs_lines_and_no_time():
    """Beyond the bound lines are dropped and counted, and the caller goes on at once."""
    gate = Gate()
    writer = LineWriter(gate.write, max_lines=10)
    writer.put(b"first\n")
    assert gate.is_asked.wait(LONG_S)
    for number in range(25):
        writer.put(b"%d\n" % number)

    assert writer.dropped_lines == 15
    assert "10 lines wait, 15 dropped" in repr(writer)
    gate.go.set()
    assert writer.close(LONG_S)
    assert b"".join(gate.written) == b"first\n" + b"".join(b"%d\n" % number for number in range(10))


def test_closing_gives_up_on_a_reader_that_stands_still():
    """The process must be able to end."""
    gate = Gate()
    writer = LineWriter(gate.write)
    writer.put(b"stuck\n")
    assert gate.is_asked.wait(LONG_S)

    assert not writer.close(0.0)
    gate.go.set()
    assert writer.close(LONG_S)


def test_lines_after_closing_are_counted():
    """Whoever logs too late does no harm."""
    writer = LineWriter(lambda _: None)
    assert writer.close(LONG_S)
    writer.put(b"late\n")

    assert writer.dropped_lines == 1


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), BrokenPipeError(), ValueError("closed file")]
)
def test_a_write_that_fails_is_counted_and_the_next_one_tried(error):
    """A full disk ends the log only for as long as it is full."""
    written = []
    failures = [error]
    failed = threading.Event()

    def write(data):
        if failures:
            failed.set()
            raise failures.pop()
        written.append(data)

    writer = LineWriter(write)
    writer.put(b"lost\n")
    assert failed.wait(LONG_S)
    writer.put(b"kept\n")

    assert writer.close(LONG_S)
    assert (written, writer.dropped_lines) == ([b"kept\n"], 1)


def test_a_full_pipe_that_nobody_reads_is_survived():
    """With a real pipe: lines are dropped, and when the reader goes away for good the writer comes to its end."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        writer = LineWriter(write_to(stream), max_lines=100)
        for _ in range(5000):
            writer.put(b"x" * 1023 + b"\n")
        assert writer.dropped_lines > 0
        os.close(reading)
        assert writer.close(LONG_S)


def test_a_pipe_that_does_not_block_is_waited_for():
    """Another program may have set the terminal so; not a byte is lost by it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    size = 300_000
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb") as reader:
        writer = LineWriter(write_to(stream))
        writer.put(b"x" * size)

        assert len(reader.read(size)) == size
        assert writer.close(LONG_S)


def test_a_stream_without_a_descriptor_works_too():
    """Tests and notebooks have such streams."""
    stream = io.StringIO()
    write_to(stream)("häl\n".encode())

    assert stream.getvalue() == "häl\n"
