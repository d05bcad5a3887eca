"""Recorded Claude Code sessions as plans, from the packed trace file (one JSON session a line, gzip).

A turn there is `[t, in, out, api_s, think_s, stop, model, lcp, runs]`; `lcp` counts the leading blocks that its prompt
shares with the one before. Pure but for reading the file.
"""

import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.bench.plans import SessionPlan, TurnPlan

_SLACK_BLOCKS: Final = 2
"""A prompt that lost no more than this at its end has only grown: a reminder moved, or a block was cut short."""
_LEAST_TOKENS: Final = 1


class TraceError(Exception):
    """The file is no trace of this format."""


class Trace:
    """The sessions of one file, drawn with replacement."""

    def __init__(self, sessions: list[SessionPlan]) -> None:
        self._sessions = sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def draw(self, rng: random.Random) -> SessionPlan:
        """One of the recorded sessions."""
        return rng.choice(self._sessions)


def read_trace(path: Path) -> Trace:
    """All sessions of a file.

    Raises:
        TraceError: it cannot be read as one.
    """
    try:
        sessions = [session for line in _lines(path) if (session := _session(orjson.loads(line))).turns]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} is no packed Claude Code trace: {error}") from error
    if not sessions:
        raise TraceError(f"{path} holds no session")
    return Trace(sessions)


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield from (line for line in file if line.strip())


def _session(recorded: dict[str, Any]) -> SessionPlan:
    block_tokens = int(recorded["bs"])
    turns: list[TurnPlan] = []
    shared_tokens = prompt_tokens = context_tokens = 0
    for _, next_prompt_tokens, answer_tokens, _, think_s, _, _, common_blocks, _ in recorded["reqs"]:
        if turns:
            kept_tokens = _kept(common_blocks * block_tokens, prompt_tokens, _SLACK_BLOCKS * block_tokens)
        else:
            context_tokens = shared_tokens = max(
                min(int(recorded["tool"] + recorded["sys"]), next_prompt_tokens - 1), 0
            )
            kept_tokens = None
        base_tokens = context_tokens if kept_tokens is None else max(kept_tokens, shared_tokens)
        new_tokens = max(next_prompt_tokens - base_tokens, _LEAST_TOKENS)
        turns.append(TurnPlan(new_tokens, max(answer_tokens, 1), max(float(think_s or 0), 0.0), kept_tokens))
        prompt_tokens = next_prompt_tokens
        context_tokens = base_tokens + new_tokens + turns[-1].answer_tokens
    return SessionPlan(shared_tokens, tuple(turns))


def _kept(common_tokens: int, before_tokens: int, slack_tokens: int) -> int | None:
    return None if common_tokens + slack_tokens >= before_tokens else common_tokens
