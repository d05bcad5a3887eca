"""Which headers pass, which stop here: hop-by-hop ones, credentials, control headers, cookies. Pure functions.

docs/architecture.md lists the differences between what a client sends and what a backend sees; a test holds it to that.
"""

from collections.abc import Iterable, Sequence
from typing import Final

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

_NOT_RELAYED: Final = HOP_BY_HOP | {b"content-length", b"set-cookie", b"x-request-id"}


def connection_options(headers: Iterable[Header]) -> frozenset[bytes]:
    """The header names that `Connection` headers declare to be hop-by-hop, in lower case."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    if not values or (len(values) == 1 and values[0].lower() in _PLAIN_OPTIONS):
        return _NO_OPTIONS
    return frozenset(option.strip().lower() for value in values for option in value.split(b","))


def names_protected(headers: Iterable[Header]) -> bool:
    """Whether a `Connection` header tries to have a header stripped that framing or authentication rests on."""
    return not _NEVER_NAMED.isdisjoint(connection_options(headers))


def forwarded_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """The client's headers that go on to a backend, names and values byte for byte."""
    named = connection_options(headers)
    stopped = _STOPPED | named if named else _STOPPED
    return tuple(
        [
            header
            for header in headers
            if (name := header[0].lower()) not in stopped and (b"_" not in name or not _is_twin(name))
        ]
    )


def relayed_headers(headers: Sequence[Header], receipt: Iterable[Header]) -> list[Header]:
    """A backend's headers that go back to the client, and the proxy's own after them."""
    named = connection_options(headers)
    stopped = _NOT_RELAYED | named if named else _NOT_RELAYED
    return [header for header in headers if header[0].lower() not in stopped] + list(receipt)


def _is_twin(name: bytes) -> bool:
    """Whether an underscore spelling would mean one of ours behind a lenient server (`content_length`)."""
    return name.replace(b"_", b"-") in _STOPPED
