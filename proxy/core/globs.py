"""Names and patterns of names, and what stands behind them. Values only.

`*` stands for any characters, `?` for one; capital letters count. An exact name goes before every pattern, and of
several patterns the first one that matches counts, in the order in which they are configured.
"""

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


def is_pattern(name: str) -> bool:
    """Whether a configured name stands for more than itself."""
    return "*" in name or "?" in name


class Globs(Generic[_Value]):
    """What stands behind a name.

    Args:
        entries: by name or pattern.

    Attributes:
        exact: the entries whose key is no pattern.
    """

    def __init__(self, entries: Mapping[str, _Value]) -> None:
        self.exact = {name: value for name, value in entries.items() if not is_pattern(name)}
        self._patterns = [(_compiled(name), value) for name, value in entries.items() if is_pattern(name)]

    def matching(self, name: str) -> _Value | None:
        """What the first pattern stands for that matches; None when none does."""
        for pattern, value in self._patterns:
            if pattern.fullmatch(name):
                return value
        return None

    def find(self, name: str) -> _Value | None:
        """What stands behind a name: its own entry, else the first pattern's; None when there is neither."""
        own = self.exact.get(name)
        return own if own is not None else self.matching(name)


def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = {"*": ".*", "?": "."}
    return re.compile("".join(pieces.get(char, re.escape(char)) for char in pattern), re.DOTALL)
