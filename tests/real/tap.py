"""A wire tap in front of a backend: passes every byte on as it is and writes down what requests went by.

`python -m tests.real.tap PORT TARGET_PORT OUT` appends one JSON line a request to OUT, `at_s` by the monotonic clock.
Values of credentials are left out, and of a body only its size and counts are kept.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

import httptools

from tests.real.between import serve_between

_SECRET: Final = frozenset({"authorization", "x-api-key", "cookie"})


def counts_in(body: bytes) -> dict[str, Any]:
    """What a JSON body holds, in numbers."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    if not isinstance(parsed, dict):
        return {}
    lists = {name: len(value) for name, value in parsed.items() if isinstance(value, list)}
    return {"model": parsed.get("model"), "stream": parsed.get("stream"), **lists}


class RequestNotes:
    """Takes one connection's request bytes, calls `write` with a note of each whole request."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._parser = httptools.HttpRequestParser(self)
        self._start_over()

    def feed(self, data: bytes) -> bool:
        """Take bytes as they pass; they always may."""
        self._parser.feed_data(data)
        return True

    def _start_over(self) -> None:
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._start_over()

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers."""
        lower = name.decode("latin-1").lower()
        self._headers.append((lower, "(not written down)" if lower in _SECRET else value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._body += body

    def on_message_complete(self) -> None:
        """All of it has passed."""
        self._write(
            {
                "method": self._parser.get_method().decode(),
                "target": self._target.decode("latin-1"),
                "headers": self._headers,
                "body_bytes": len(self._body),
                "body": counts_in(bytes(self._body)),
            }
        )


async def serve(port: int, target_port: int, out: Path) -> None:
    """Listen until cancelled."""
    with out.open("a", buffering=1) as notes:

        def write(note: dict[str, Any]) -> None:
            notes.write(json.dumps({"at_s": monotonic(), **note}) + "\n")

        await serve_between(port, target_port, lambda: RequestNotes(write).feed)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
