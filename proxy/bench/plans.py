"""What an agent's session will do, as plain numbers: how its context grows, what it asks for, how long it thinks.

Pure and repeatable: a session depends on the seed, the agent and its number, never on how fast anything answered.
"""

import random
from dataclasses import dataclass, replace
from typing import Final, Protocol

DRAWS: Final = 1_000
"""Tries to find a session that fits the context limit before giving up."""


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One turn.

    Attributes:
        new_tokens: what the prompt gains before it: the task at first, later a tool's result.
        answer_tokens: how much is asked for.
        think_s: pause after the answer.
        kept_tokens: how much of the context so far stays; None: all. A compaction keeps little.
    """

    new_tokens: int
    answer_tokens: int
    think_s: float
    kept_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session.

    Attributes:
        shared_tokens: system prompt and tools, which all sessions begin with.
        past_turns: those that are made up instead of asked for, as if the session had begun before the run.
    """

    shared_tokens: int
    turns: tuple[TurnPlan, ...]
    past_turns: int = 0

    def context_tokens(self, turn: TurnPlan, before_tokens: int) -> int:
        """The prompt of a turn, given the context before it."""
        kept = before_tokens if turn.kept_tokens is None else min(turn.kept_tokens, before_tokens)
        return max(kept, self.shared_tokens) + turn.new_tokens


class Shape(Protocol):
    """A kind of session that plans are drawn from."""

    def draw(self, rng: random.Random) -> SessionPlan:
        """One session, in the tokens of the real thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How the real thing is made to fit.

    Attributes:
        scale: factor on all tokens.
        context_tokens: a session ends before its context would pass this; None: no limit. After scaling.
        think_scale: factor on all pauses.
        longest_think_s: longer pauses are cut to this, before scaling.
    """

    scale: float = 1.0
    context_tokens: int | None = None
    think_scale: float = 1.0
    longest_think_s: float = 60.0


class DoesNotFitError(Exception):
    """No session of this shape fits the context limit."""


class Workload:
    """Sessions of a shape, fitted to limits."""

    def __init__(self, shape: Shape, *, seed: int, limits: Limits) -> None:
        self._shape = shape
        self._seed = seed
        self._limits = limits

    def session(self, agent: int, number: int, *, is_aged: bool = False) -> SessionPlan:
        """An agent's session by number; an aged one begins at a random turn.

        Raises:
            DoesNotFitError: nothing of this shape fits.
        """
        rng = chance(self._seed, "session", agent, number)
        for _ in range(DRAWS):
            plan = _fitted(self._shape.draw(rng), self._limits)
            if plan.turns:
                return replace(plan, past_turns=rng.randrange(len(plan.turns))) if is_aged else plan
        raise DoesNotFitError(f"no session fits a context of {self._limits.context_tokens} tokens; try a smaller scale")


def chance(*seed: object) -> random.Random:
    """Randomness that repeats with its seed."""
    return random.Random("/".join(map(str, seed)))  # noqa: S311 - seeded pseudo-randomness is the point


def _fitted(plan: SessionPlan, limits: Limits) -> SessionPlan:
    """The plan scaled, and ended before its context passes the limit."""
    fitted = SessionPlan(_scaled(plan.shared_tokens, limits.scale), ())
    turns = []
    context_tokens = fitted.shared_tokens
    for turn in (_scaled_turn(turn, limits) for turn in plan.turns):
        context_tokens = fitted.context_tokens(turn, context_tokens) + turn.answer_tokens
        if limits.context_tokens is not None and context_tokens > limits.context_tokens:
            break
        turns.append(turn)
    return replace(fitted, turns=tuple(turns))


def _scaled_turn(turn: TurnPlan, limits: Limits) -> TurnPlan:
    return TurnPlan(
        _scaled(turn.new_tokens, limits.scale),
        _scaled(turn.answer_tokens, limits.scale),
        min(turn.think_s, limits.longest_think_s) * limits.think_scale,
        None if turn.kept_tokens is None else _scaled(turn.kept_tokens, limits.scale),
    )


def _scaled(tokens: int, scale: float) -> int:
    return max(1, round(tokens * scale))
