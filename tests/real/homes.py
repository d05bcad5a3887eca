"""Which engine served which turn, from what the taps in front of the engines wrote down."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SESSION_HEADER: Final = "x-session-id"
_TURNS: Final = "/v1/chat/completions"


@dataclass(frozen=True)
class Homes:
    """What became of the turns of all sessions.

    Attributes:
        turns: on each engine, in the order of the engines.
        returns: turns that had one before them in their session.
        kept: those of them that went where the one before went.
    """

    turns: tuple[int, ...]
    returns: int
    kept: int

    @property
    def kept_ratio(self) -> float | None:
        """The share of turns that came home."""
        return self.kept / self.returns if self.returns else None


def read_notes(path: Path) -> list[Mapping[str, Any]]:
    """What one tap wrote; a line that is not whole yet is left out."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def homes(taps: Iterable[Iterable[Mapping[str, Any]]]) -> Homes:
    """Where turns went, from the notes of each engine's tap."""
    seen: list[tuple[float, str, int]] = []
    counts: list[int] = []
    for engine, notes in enumerate(taps):
        turns = [
            (note["at_s"], session, engine)
            for note in notes
            if note["target"] == _TURNS and (session := dict(note["headers"]).get(SESSION_HEADER))
        ]
        seen += turns
        counts.append(len(turns))
    last: dict[str, int] = {}
    returns = kept = 0
    for _, session, engine in sorted(seen):
        if session in last:
            returns += 1
            kept += last[session] == engine
        last[session] = engine
    return Homes(tuple(counts), returns, kept)
