"""Recorded coding-agent sessions: sizes, thinking times and stop reasons of real turns, without their text.

Reads the packed form of the Claude Code traces of kv-cache-tester (Apache-2.0, see `data/NOTICE.md`); a slice with the
turns up to 131k tokens is part of the package.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from proxy.core.turns import StopReason

SLICE: Final = Path(__file__).parent / "data" / "claude_code_sessions.jsonl.gz"
_HASH_TOKENS: Final = 64
"""Tokens that one recorded hash covers."""
_LOSS_BLOCKS: Final = 2
"""So many hashes at the end of a prompt may differ without anything having been rewritten: the last is cut short."""
_STOPS: Final = {"tool_use": StopReason.TOOL_USE, "end_turn": StopReason.END_TURN}


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn.

    Attributes:
        kept_tokens: how much of the turn before is the beginning of this one; None for all of it, answer included.
        think_s: seconds between the end of the turn before and this one.
    """

    prompt_tokens: int
    answer_tokens: int
    think_s: float
    stop: StopReason
    kept_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedThread:
    """A session, or a sub-agent's part of one.

    Attributes:
        starts_after: turns of the parent after which a sub-agent starts.
        children: sub-agents.
    """

    head_tokens: int
    turns: Sequence[RecordedTurn]
    starts_after: int = 0
    children: Sequence["RecordedThread"] = ()


@cache
def recorded_sessions(path: Path = SLICE) -> tuple[RecordedThread, ...]:
    """All sessions of a packed file.

    Raises:
        OSError: no such file.
        ValueError: the file holds something else.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return tuple(_sessions(lines))
    except (KeyError, TypeError, ValueError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} does not hold packed Claude Code traces") from error


def cut_to(thread: RecordedThread, context_tokens: int) -> RecordedThread:
    """The session up to the first turn whose context is longer; sub-agents that start later are gone too."""
    turns: list[RecordedTurn] = []
    for turn in thread.turns:
        if turn.prompt_tokens + turn.answer_tokens > context_tokens:
            break
        turns.append(turn)
    children = [cut_to(child, context_tokens) for child in thread.children if child.starts_after < len(turns)]
    children = [child for child in children if child.turns]
    return RecordedThread(thread.head_tokens, turns, thread.starts_after, children)


def _sessions(lines: Iterator[str]) -> Iterator[RecordedThread]:
    for line in lines:
        session = json.loads(line)
        children = [
            RecordedThread(child["tool_tokens"] + child["system_tokens"], _turns(child["reqs"]), max(1, child["after"]))
            for child in session.get("subs", ())
        ]
        yield RecordedThread(session["tool"] + session["sys"], _turns(session["reqs"]), 0, children)


def _turns(requests: Sequence[Any]) -> list[RecordedTurn]:
    turns: list[RecordedTurn] = []
    before_tokens = 0
    for _, prompt, answer, _, think_s, stop, _, same_blocks, _ in requests:
        is_rewritten = same_blocks < before_tokens // _HASH_TOKENS - _LOSS_BLOCKS
        kept = same_blocks * _HASH_TOKENS if is_rewritten else None
        turns.append(
            RecordedTurn(max(1, prompt), max(1, answer), think_s or 0.0, _STOPS.get(stop, StopReason.OTHER), kept)
        )
        before_tokens = prompt
    return turns
