"""Coding agents in virtual time: sessions that share a system prompt, grow turn by turn and think in between.

The workload of the GPU baseline, against one engine without any proxy; `compare` holds the result to what was measured.
Pure and repeatable by seed.
"""

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from statistics import mean, median

from proxy.sim.engine import Engine
from proxy.sim.presets import EngineConfig
from proxy.sim.prompts import SessionKeys, SharedPrefix
from proxy.sim.report import StepResult
from proxy.sim.sequence import EngineRequest

SHARED_TOKENS = 12_000
FIRST_OWN_TOKENS = (1_500, 2_500)
TURNS = (8, 12)
ANSWER_TOKENS = (100, 600)
TOOL_RESULT_TOKENS = (500, 4_000)
THINK_S = (0.5, 4.0)
LONGEST_CONTEXT_TOKENS = 45_000
"""All of it from the GPU baseline, section 2."""


@dataclass(frozen=True, slots=True)
class AgentsResult:
    """What the agents got in the measured window.

    Attributes:
        turns_per_s: turns finished.
        output_tokens_per_s: tokens generated.
        first_token_p50_s: from a turn's sending to its first token.
        own_hit_ratio: of returning turns' context beyond the shared prompt, the part found in the prefix cache.
    """

    turns_per_s: float
    output_tokens_per_s: float
    first_token_p50_s: float
    own_hit_ratio: float


@dataclass(slots=True)
class _Session:
    keys: SessionKeys
    context_tokens: int
    turns_left: int
    is_returning: bool = False
    answer_tokens: int = 0
    asked_at: float | None = None


@dataclass(slots=True)
class _Window:
    since_s: float
    turns: int = 0
    tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    own_hits: list[float] = field(default_factory=list)


class Agents:
    """A fixed number of agents, each running one session after the other."""

    def __init__(self, config: EngineConfig, agents: int, *, seed: int = 1) -> None:
        self.engine = Engine(config, seed=seed)
        self._host_s_per_token = config.step_time.host_s_per_token
        self._rng = random.Random(seed)
        self._shared = SharedPrefix("system prompt", SHARED_TOKENS, config.block_tokens)
        self._sessions = [self._new_session(is_aged=True) for _ in range(agents)]
        # When each thinking agent comes back.
        self._returns: list[tuple[float, int]] = []
        for agent in range(agents):
            heappush(self._returns, (self._rng.uniform(0, THINK_S[0]), agent))

    def run(self, warm_up_s: float, window_s: float) -> AgentsResult:
        """Let them work; what happened in the window after the warm-up."""
        window = _Window(warm_up_s)
        now = 0.0
        while now < warm_up_s + window_s:
            while self._returns and self._returns[0][0] <= now:
                self._send(*heappop(self._returns))
            if not self.engine.has_work:
                now = self._returns[0][0]
                continue
            result = self.engine.step(now, self._returns[0][0] if self._returns else now + window_s)
            now += result.duration_s
            self._note(result, now, window)
        return AgentsResult(
            window.turns / window_s,
            window.tokens / window_s,
            median(window.first_token_s),
            mean(window.own_hits) if window.own_hits else 0.0,
        )

    def _new_session(self, *, is_aged: bool = False) -> _Session:
        """A session at its first turn; an aged one at a random turn, as if it had begun before the run."""
        rng = self._rng
        turns = rng.randint(*TURNS)
        past = rng.randrange(turns) if is_aged else 0
        context = SHARED_TOKENS + rng.randint(*FIRST_OWN_TOKENS)
        context += sum(rng.randint(*ANSWER_TOKENS) + rng.randint(*TOOL_RESULT_TOKENS) for _ in range(past))
        keys = SessionKeys(self.engine.config.block_tokens, self._shared)
        return _Session(keys, min(context, LONGEST_CONTEXT_TOKENS - ANSWER_TOKENS[1]), turns - past)

    def _send(self, at: float, agent: int) -> None:
        session = self._sessions[agent]
        if session.turns_left == 0 or session.context_tokens + ANSWER_TOKENS[1] > LONGEST_CONTEXT_TOKENS:
            session = self._sessions[agent] = self._new_session()
        session.answer_tokens = self._rng.randint(*ANSWER_TOKENS)
        session.asked_at = at - self._host_s_per_token * session.context_tokens
        prompt = session.keys.prompt(session.context_tokens, session.answer_tokens)
        self.engine.submit(EngineRequest(str(agent), prompt, session.answer_tokens), at)

    def _note(self, result: StepResult, now: float, window: _Window) -> None:
        is_counted = now > window.since_s
        for admitted in result.admitted:
            session = self._sessions[int(admitted.request_id)]
            if is_counted and admitted.is_first_time and session.is_returning:
                own = session.context_tokens - SHARED_TOKENS
                window.own_hits.append(max(admitted.hit_tokens - SHARED_TOKENS, 0) / own)
        for request_id, tokens in result.emitted.items():
            session = self._sessions[int(request_id)]
            if session.asked_at is not None:
                if is_counted:
                    window.first_token_s.append(now - session.asked_at)
                session.asked_at = None
            window.tokens += tokens if is_counted else 0
        for request_id in result.finished:
            window.turns += is_counted
            self._end_turn(int(request_id), now)

    def _end_turn(self, agent: int, now: float) -> None:
        session = self._sessions[agent]
        session.context_tokens += session.answer_tokens + self._rng.randint(*TOOL_RESULT_TOKENS)
        session.turns_left -= 1
        session.is_returning = True
        host_s = self._host_s_per_token * session.context_tokens
        heappush(self._returns, (now + self._rng.uniform(*THINK_S) + host_s, agent))
