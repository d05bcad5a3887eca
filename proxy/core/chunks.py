"""Whole chunks of a chunked body, told by their length alone: most of what engines stream is one chunk a read."""

from typing import Final

_LONGEST_BODY_BYTES: Final = 2_048
"""Longer chunks take the long way: what is kept of a stream until it is looked at would be too much."""


def _size_lines() -> dict[int, bytes]:
    lines = {}
    for size in range(1, _LONGEST_BODY_BYTES + 1):
        line = b"%x\r\n" % size
        lines[len(line) + size + 2] = line
    return lines


SIZE_LINES: Final = _size_lines()
"""By the length of a whole chunk, framing included, the line that it begins with when it has no extension."""

BODY_STARTS: Final = [len(SIZE_LINES.get(length, b"")) for length in range(max(SIZE_LINES) + 1)]
"""By the same length, where its body begins; two bytes before its end it is over."""

NO_SIZE_LINE: Final = b"no chunk begins like this"
