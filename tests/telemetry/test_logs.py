import asyncio
import io
import json
import logging
import os
import re

import pytest

from proxy.telemetry.logs import MAX_VALUE_CHARS, configure


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        """Yes."""
        return True


def lines_of(write, *, log_format="json", log_level="info", stream=None):
    """What is in the stream after `write(log)`."""
    stream = stream if stream is not None else io.StringIO()
    log = configure(log_format, log_level, stream)
    write(log)
    assert log.close()
    assert log.dropped_lines == 0
    return stream.getvalue().splitlines()


def test_a_json_line_starts_with_time_level_and_event():
    """Time is UTC, and the fields stand in the order in which they were given."""
    (line,) = lines_of(lambda log: log.event("backend.down", level="warning", backend="a:1", failures=3, probe=None))

    assert list(json.loads(line)) == ["timestamp", "level", "event", "backend", "failures"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", json.loads(line)["timestamp"])
    assert json.loads(line)["level"] == "warning"


@pytest.mark.parametrize(
    ("stream", "log_format", "is_json"),
    [
        (Terminal(), "auto", False),
        (io.StringIO(), "auto", True),
        (Terminal(), "json", True),
        (io.StringIO(), "console", False),
    ],
)
def test_the_format_follows_the_terminal_unless_told(stream, log_format, is_json):
    """People get the console format, collectors get JSON."""
    (line,) = lines_of(lambda log: log.event("x.y", n=1), log_format=log_format, stream=stream)

    assert line.startswith("{") == is_json
    assert "x.y" in line


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    """NO_COLOR is respected."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in lines_of(lambda log: log.event("x.y"), log_format="auto", stream=Terminal())[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in lines_of(lambda log: log.event("x.y"), log_format="auto", stream=Terminal())[0]


@pytest.mark.parametrize(("log_level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lower_levels_are_left_out(log_level, count):
    """The level is the lowest that is written."""

    def write(log):
        for level in ("debug", "info", "warning", "error"):
            log.event("x.y", level=level)

    assert len(lines_of(write, log_level=log_level)) == count


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_cannot_be_printed_is_escaped(log_format):
    """A value can neither begin a new line nor speak to the terminal nor break the encoder."""
    hostile = "a\nb\r\x1b[31m\x00\u202e\ud800\u2028"

    (line,) = lines_of(lambda log: log.event("x.y", note=hostile, extra={hostile: hostile}), log_format=log_format)

    assert line.isprintable()


def test_values_are_cut_and_odd_ones_are_described():
    """A line stays short whatever is given to it."""

    def write(log):
        log.event(
            "x.y", note="x" * 10_000, big=10**40, odd=object, many={str(n): n for n in range(1000)}, nan=float("nan")
        )

    line = json.loads(lines_of(write)[0])

    assert len(line["note"]) == MAX_VALUE_CHARS
    assert line["big"] == "a number beyond 64 bits"
    assert line["odd"] == "<class 'object'>"
    assert len(line["many"]) == 20
    assert line["nan"] is None


def test_a_line_that_cannot_be_made_is_counted_and_not_raised():
    """Not even a value whose repr fails can stop a request."""

    class Broken:
        def __repr__(self):
            raise RuntimeError("no")

    stream = io.StringIO()
    log = configure("json", "info", stream)
    log.event("x.y", value=Broken())

    assert log.close()
    assert (stream.getvalue(), log.dropped_lines) == ("", 1)


def test_libraries_speak_through_the_same_log():
    """Warnings of the standard library's logging become lines, with their traceback on one of them."""

    def write(_):
        handler = logging.getLogger().handlers[-1]
        try:
            int("broken\npipe")
        except ValueError:
            logging.getLogger("asyncio").exception("Task exception was never retrieved")
        logging.getLogger("aiohttp").warning("odd %s")
        logging.getLogger("aiohttp").info("not this")
        # Directly, since the handlers of pytest fail on it.
        handler.handle(logging.makeLogRecord({"name": "x", "levelno": 30, "msg": "two %s", "args": (1, 2)}))

    first, second, third = map(json.loads, lines_of(write))

    assert (first["event"], first["level"], first["logger"]) == ("library.warned", "error", "asyncio")
    assert "ValueError: invalid literal" in first["trace"]
    assert (second["message"], third["message"]) == ("odd %s", "two %s")


def test_after_closing_libraries_are_let_go():
    """The handler does not outlive the log."""
    before = list(logging.getLogger().handlers)
    lines_of(lambda log: log.event("x.y"))

    assert logging.getLogger().handlers == before


async def test_an_event_loop_goes_on_while_nobody_reads():
    """Writing ten thousand lines into a pipe that is full does not hold up the loop."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        log = configure("json", "info", stream)
        async with asyncio.timeout(30):
            for _ in range(3):
                for _ in range(5000):
                    log.event("x.y", text="x" * 100)
                await asyncio.sleep(0)
        os.close(reading)
        assert log.close()
        assert log.dropped_lines > 0
