"""Which headers pass, which stop here: hop-by-hop ones, credentials, control headers, cookies. Pure functions.

docs/architecture.md lists the differences between what a client sends and what a backend sees; a test holds it to that.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"proxy-connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip
"""RFC 9110 section 7.6.1, with the two that browsers and h2c upgrades add."""

_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie"})
"""The client's, for this proxy. A backend gets its own."""

_OURS: Final = frozenset({b"host", b"content-length", b"expect", b"x-request-id"})
"""Written anew for the backend, or answered here (`Expect`)."""

_CONTROL: Final = frozenset({b"x-data-parallel-rank", b"endpoint-load-metrics-format", b"x-tidegate-class"})
"""Steer the engine or tell about it: for the proxy to set, not for clients."""

_STOPPED: Final = HOP_BY_HOP | _CREDENTIALS | _OURS | _CONTROL

_NEVER_NAMED: Final = frozenset(
    {
        b"host",
        b"content-length",
        b"authorization",
        b"x-api-key",
        b"content-type",
        b"anthropic-version",
        b"anthropic-beta",
    }
)
"""Never hop-by-hop: a `Connection` header that names one is trying to strip it from the request behind us."""

_PLAIN_OPTIONS: Final = frozenset({b"keep-alive", b"close"})
_NO_OPTIONS: Final[frozenset[bytes]] = frozenset()

_NOT_RELAYED: Final = HOP_BY_HOP | {b"content-length", b"set-cookie", b"x-request-id", b"request-id"}
_JOIN: Final = b": ".join
_READ: Final = _NOT_RELAYED | {b"content-type", b"content-encoding"}


class ResponseHead(Struct, frozen=True, gc=False):
    """Status line and headers of a backend's answer.

    Attributes:
        headers: the end-to-end ones, which may go on to a client, names and values byte for byte.
        content_length: the body's size in bytes; None unless it was given.
        content_type: in lower case, empty when it was not given.
        is_encoded: the body is compressed or otherwise encoded.
    """

    status: int
    reason: bytes = b""
    headers: tuple[Header, ...] = ()
    is_chunked: bool = False
    content_length: int | None = None
    content_type: bytes = b""
    is_encoded: bool = False


def response_head(status: int, reason: bytes, headers: Iterable[Header]) -> ResponseHead:
    """Read a backend's headers, once for all that wants to know of them.

    Raises:
        ValueError: the length is not a number; llhttp has checked that before.
    """
    kept: list[Header] = []
    options: list[bytes] = []
    content_length = None
    content_type = b""
    is_chunked = is_encoded = False
    for header in headers:
        name = header[0].lower()
        if name not in _READ:
            kept.append(header)
        elif name == b"content-type":
            content_type = header[1].lower()
            kept.append(header)
        elif name == b"content-length":
            content_length = int(header[1])
        elif name == b"transfer-encoding":
            is_chunked = header[1].lower().endswith(b"chunked")
        elif name == b"content-encoding":
            is_encoded = header[1].lower() != b"identity"
            kept.append(header)
        elif name == b"connection":
            options.append(header[1])
    if named := connection_options(options):
        kept = [header for header in kept if header[0].lower() not in named]
    return ResponseHead(status, reason, tuple(kept), is_chunked, content_length, content_type, is_encoded)


def connection_options(values: Sequence[bytes]) -> frozenset[bytes]:
    """The header names that `Connection` headers with these values declare to be hop-by-hop, in lower case."""
    if not values or (len(values) == 1 and values[0].lower() in _PLAIN_OPTIONS):
        return _NO_OPTIONS
    return frozenset(option.strip().lower() for value in values for option in value.split(b","))


def names_protected(options: frozenset[bytes]) -> bool:
    """Whether `Connection` options try to have a header stripped that framing or authentication rests on."""
    return not _NEVER_NAMED.isdisjoint(options)


def forwarded_headers(headers: Iterable[Header], options: frozenset[bytes]) -> tuple[Header, ...]:
    """The client's headers that go on to a backend, names and values byte for byte.

    Args:
        headers: as received.
        options: what its `Connection` headers name.
    """
    if options:
        headers = [header for header in headers if header[0].lower() not in options]
    return tuple([header for header in headers if _passes(header[0])])


def header_lines(headers: Iterable[Header]) -> bytes:
    """Headers as they are written."""
    return b"\r\n".join([*map(_JOIN, headers), b""])


@lru_cache(maxsize=512)  # clients send the same few dozen names again and again
def _passes(name: bytes) -> bool:
    """Whether a client's header goes on; spelled with underscores it may be one of ours to a lenient server."""
    return name.lower().replace(b"_", b"-") not in _STOPPED
