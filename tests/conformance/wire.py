"""A client that shows what really came over the wire: headers in order, body bytes, when each piece arrived.

The SDKs hide that; the golden comparisons and the cases about leaving need it. One connection a call, no retries.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from threading import Event
from time import monotonic
from typing import Any, Final, Self
from urllib.parse import urlsplit

JsonBody = Mapping[str, Any]
Body = JsonBody | bytes | Iterator[bytes] | None
"""JSON to be written, bytes as they are, or pieces, each sent as one HTTP chunk."""

_TIMEOUT_S: Final = 50.0
_READ_BYTES: Final = 65_536


@dataclass(frozen=True)
class Answer:
    """One whole answer.

    Attributes:
        headers: names in lower case, in the order they came.
        body: without transfer coding.
        arrivals_s: seconds from the request to each piece of the body, as the socket gave them.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    arrivals_s: tuple[float, ...]

    def header(self, name: str) -> str | None:
        """The value of the only header of that name, or None."""
        values = [value for given, value in self.headers if given == name]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        """The body as JSON, which it must say it is."""
        content_type = self.header("content-type") or "nothing"
        assert content_type.partition(";")[0] == "application/json", f"{content_type}: {self.body[:200]!r}"
        return json.loads(self.body)


class Call:
    """One request that has been sent; what follows is up to the test. Leaving the block closes the connection."""

    def __init__(
        self,
        url: str,
        target: str,
        body: Body = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
        self._response: HTTPResponse | None = None
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        is_chunked = isinstance(data, Iterator)
        asked = {"Content-Type": "application/json"} if data is not None else {}
        self._sent_at = monotonic()
        try:
            self._connection.request(
                method, target, body=data, headers={**asked, **(headers or {})}, encode_chunked=is_chunked
            )
        except (BrokenPipeError, ConnectionResetError):  # refused before all of it was sent: the answer says why
            pass
        except OSError:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    def head(self) -> HTTPResponse:
        """Wait for the status line and the headers."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives."""
        response = self.head()
        while piece := response.read1(_READ_BYTES):
            yield piece

    def answer(self) -> Answer:
        """Wait for all of it."""
        response = self.head()
        pieces, arrivals = [], []
        for piece in self.pieces():
            pieces.append(piece)
            arrivals.append(monotonic() - self._sent_at)
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        return Answer(response.status, headers, b"".join(pieces), tuple(arrivals))

    def leave(self) -> None:
        """Close the connection, whatever is still to come."""
        if self._response is not None:
            self._response.close()
        self._connection.close()


def ask(
    url: str,
    target: str,
    body: Body = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request and wait for the whole answer."""
    with Call(url, target, body, method=method, headers=headers) as call:
        return call.answer()


def is_answering(url: str, target: str) -> bool:
    """Whether a GET is answered with 200 right now."""
    try:
        return ask(url, target, method="GET").status == 200
    except (OSError, HTTPException):
        return False


def eventually(holds: Callable[[], bool], *, within_s: float, every_s: float = 0.02) -> bool:
    """Ask again and again until it holds; False when the time is over first."""
    pause, deadline = Event(), monotonic() + within_s
    while not holds():
        if monotonic() > deadline:
            return False
        pause.wait(every_s)
    return True


def gauge(engine_url: str, *names: str) -> float:
    """The sum of an engine's samples of these metrics, whatever their labels."""
    page = ask(engine_url, "/metrics", method="GET").body.decode()
    samples = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return sum(float(value) for series, _, value in samples if series.partition("{")[0] in names)


def unfinished_requests(engine_url: str) -> int:
    """How many requests an engine is working on or holds in its queue."""
    return int(gauge(engine_url, "vllm:num_requests_running", "vllm:num_requests_waiting"))
