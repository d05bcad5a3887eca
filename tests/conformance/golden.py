"""What must be equal between an answer through the proxy and one from the engine itself, and what need not be."""

import re
from typing import Final

from tests.conformance.wire import Answer

_OWN_TO_EACH_ANSWER: Final = (
    (re.compile(rb'"(id|item_id|response_id)":\s*"[^"]*"'), rb'"\1":"#"'),
    (re.compile(rb'"(created|created_at)":\s*\d+'), rb'"\1":0'),
)
"""Ids and timestamps: the engine makes new ones for every answer."""

_SAID: Final = re.compile(rb'"(content|text|arguments|partial_json)":"((?:[^"\\]|\\.)*)"')
"""The parts of an answer's text."""

_ADDED_BY_THE_PROXY: Final = re.compile(r"x-request-id|request-id|x-should-retry|x-tidegate-.+")
_OF_ONE_CONNECTION: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "content-length"})
"""Hop-by-hop, or the length of a body that holds an id; the reader has checked the framing."""


def normalised(body: bytes) -> bytes:
    """A body without what is new in every answer."""
    for pattern, replacement in _OWN_TO_EACH_ANSWER:
        body = pattern.sub(replacement, body)
    return body


def end_to_end_headers(answer: Answer) -> list[tuple[str, str]]:
    """The headers that a proxy must hand on as they are, in any order."""
    return sorted(
        (name, value)
        for name, value in answer.headers
        if name not in _OF_ONE_CONNECTION and not _ADDED_BY_THE_PROXY.fullmatch(name)
    )


def outline(stream: bytes) -> list[bytes]:
    """A stream's events without what they say, each kind once in a row.

    A busy engine sometimes says two tokens in one event. That is its own doing and no proxy's, and the only freedom
    that this leaves: every other byte of every event counts.
    """
    unsaid = [_SAID.sub(rb'"\1":"#"', event) for event in events(normalised(stream))]
    return [event for index, event in enumerate(unsaid) if index == 0 or event != unsaid[index - 1]]


def said_in(stream: bytes) -> bytes:
    """All that a stream's events say, one after the other."""
    return b"".join(said for _, said in _SAID.findall(stream))


def events(body: bytes) -> list[bytes]:
    """A stream's events, each with its fields."""
    assert body.endswith(b"\n\n"), f"the stream does not end with a whole event: {body[-80:]!r}"
    return body.removesuffix(b"\n\n").split(b"\n\n")
