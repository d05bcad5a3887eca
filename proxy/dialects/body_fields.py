"""Changes one field of a JSON body and leaves every other byte as it came. Pure.

Used only where a setting asks for a change: an alias, a clamp, a count of tokens.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

_VALUE: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?'
_STRING_OR_BRACKET: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)


def with_value(body: bytes, name: str, old: str | int, new: str | int) -> bytes | None:
    """The body with another value of one field of its outermost object.

    Args:
        body: a JSON object.
        name: the field; plain letters and underscores.
        old: the value that parsing the body has given.
        new: the value instead.

    Returns:
        None when the field is written in a way that cannot be changed in place (an escaped name).
    """
    spans = list(_spans(body, name, old))
    if len(spans) > 1:
        # The same name stands deeper in the body too: tools and their arguments may have a field `model`.
        spans = _outermost(body, spans)
    if not spans:
        return None
    pieces, at = [], 0
    for _, start, end in spans:
        pieces += [body[at:start], orjson.dumps(new)]
        at = end
    return b"".join([*pieces, body[at:]])


def with_member(body: bytes, member: bytes) -> bytes:
    """The body with one more field at the beginning of its outermost object.

    Args:
        body: a JSON object that is not empty.
        member: name and value as JSON, e.g. `"a":1`.
    """
    at = body.index(b"{") + 1
    return b"%b%b,%b" % (body[:at], member, body[at:])


def _spans(body: bytes, name: str, value: str | int) -> Iterator[tuple[int, int, int]]:
    """Where the field stands with this value at any depth: start of its name, start and end of its value.

    Text cannot be mistaken for it: inside a string the quotes would be escaped.
    """
    for found in re.finditer(rb'"%b"\s*+:\s*+(%b)' % (name.encode(), _VALUE), body, re.DOTALL):
        if _parsed(found[1]) == value:
            yield found.start(), found.start(1), found.end(1)


def _outermost(body: bytes, spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    starts = {span[0]: span for span in spans}
    last, depth, kept = spans[-1][0], 0, []
    for token in _STRING_OR_BRACKET.finditer(body):
        at = token.start()
        if at > last:
            break
        first = body[at]
        if first == 0x22:  # a string
            if depth == 1 and at in starts:
                kept.append(starts[at])
        else:
            depth += 1 if first in b"{[" else -1
    return kept


def _parsed(value: bytes) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
