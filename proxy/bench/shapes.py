"""The built-in kinds of sessions: the agents of the GPU baseline, and Claude Code as measured in public traces."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from proxy.bench.plans import SessionPlan, Shape, TurnPlan


class Agents:
    """Uniform and narrow, so that short windows are comparable: contexts of 14,000 to 45,000 tokens, mean 25,800."""

    shared_tokens: Final = 12_000
    longest_context_tokens: Final = 45_000

    def draw(self, rng: random.Random) -> SessionPlan:
        """One session."""
        context_tokens = self.shared_tokens
        turns: list[TurnPlan] = []
        for number in range(rng.randint(8, 12)):
            new = rng.randint(500, 4_000) if number else rng.randint(1_500, 2_500)
            turn = TurnPlan(new, rng.randint(100, 600), rng.uniform(0.5, 4.0))
            context_tokens += turn.new_tokens + turn.answer_tokens
            if context_tokens > self.longest_context_tokens:
                break
            turns.append(turn)
        return SessionPlan(self.shared_tokens, tuple(turns))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A long-tailed amount by its median and its 90th percentile, cut at both ends."""

    median: float
    p90: float
    least: float
    most: float

    def draw(self, rng: random.Random) -> float:
        """One amount."""
        sigma = math.log(self.p90 / self.median) / _NORMAL_P90
        return min(max(rng.lognormvariate(math.log(self.median), sigma), self.least), self.most)


_NORMAL_P90: Final = 1.2816
"""Standard deviations between the median and the 90th percentile."""


class ClaudeCode:
    """Long-tailed, as recorded sessions are: most turns add little, a few add much, people come back after minutes.

    Medians and tails are those of 710 public Claude Code sessions (contexts, growth, answers, turns, compactions) and
    of TraceLab's 4,265 (pauses after tools and after people).
    """

    shared_tokens: Final = 14_900
    _turns = LogNormal(45, 156, 2, 400)
    _start = LogNormal(9_600, 45_000, 200, 150_000)
    _tool_result = LogNormal(400, 2_700, 10, 40_000)
    _answer = LogNormal(216, 899, 20, 4_000)
    _tool_s = LogNormal(1.0, 10.0, 0.1, 240)
    _person_s = LogNormal(86, 570, 10, 3_600)
    _person_share: Final = 0.10
    _compaction_share: Final = 0.018

    def draw(self, rng: random.Random) -> SessionPlan:
        """One session."""
        turns = [self._turn(rng, number) for number in range(round(self._turns.draw(rng)))]
        return SessionPlan(self.shared_tokens, tuple(turns))

    def _turn(self, rng: random.Random, number: int) -> TurnPlan:
        is_compaction = number > 0 and rng.random() < self._compaction_share
        new = self._tool_result if number and not is_compaction else self._start
        pause = self._person_s if rng.random() < self._person_share else self._tool_s
        kept = self.shared_tokens if is_compaction else None
        return TurnPlan(round(new.draw(rng)), round(self._answer.draw(rng)), pause.draw(rng), kept)


PRESETS: Final[Mapping[str, Shape]] = {"agents": Agents(), "claude-code": ClaudeCode()}
