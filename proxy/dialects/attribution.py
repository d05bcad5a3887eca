"""Takes Claude Code's attribution line out of a body's system prompt, for engines that do not. Pure.

Every other byte stays as it came. Used only where a setting asks for it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from proxy.dialects.prompts import ATTRIBUTION, system_texts

_LITERAL: Final = re.compile(rb'"%b(?:[^"\\]|\\.)*+"' % ATTRIBUTION.encode(), re.DOTALL)
_BLOCK_BEGINS: Final = re.compile(rb'\{\s*+"type"\s*+:\s*+"text"\s*+,\s*+"text"\s*+:\s*+\Z')
_BLOCK_ENDS: Final = re.compile(rb'\s*+(?:,\s*+"cache_control"\s*+:\s*+\{[^{}]*+\}\s*+)?\}(\s*+,)?+')
_COMMA: Final = re.compile(rb",\s*+\Z")
_LOOK_BACK_BYTES: Final = 128


def without_attribution(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """The body without the line; the very same one where there is none.

    Args:
        body: a JSON object.
        fields: the same, parsed.
    """
    attributed = {text for text in system_texts(fields) if text.startswith(ATTRIBUTION)}
    if not attributed:
        return body
    pieces, at = [], 0
    for start, end, instead in _changes(body, attributed):
        pieces += [body[at:start], instead]
        at = end
    return b"".join([*pieces, body[at:]])


def _changes(body: bytes, attributed: set[str]) -> Iterator[tuple[int, int, bytes]]:
    for found in _LITERAL.finditer(body):
        text = orjson.loads(found[0])
        if text not in attributed:
            continue  # somebody quotes it
        start, end = found.span()
        rest = text.partition("\n")[2]
        yield (start, end, orjson.dumps(rest)) if rest else _whole_block(body, start, end)


def _whole_block(body: bytes, start: int, end: int) -> tuple[int, int, bytes]:
    """A block that is nothing but the line goes with its comma; one in another form stays, empty, like a string."""
    begins = _BLOCK_BEGINS.search(body, max(0, start - _LOOK_BACK_BYTES), start)
    ends = _BLOCK_ENDS.match(body, end)
    if begins is None or ends is None:
        return start, end, b'""'
    start, end = begins.start(), ends.end()
    if ends[1] is None and (comma := _COMMA.search(body, max(0, start - _LOOK_BACK_BYTES), start)):
        start = comma.start()  # it was the last one
    return start, end, b""
