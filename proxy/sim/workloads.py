"""What simulated agents do: sessions of turns with their sizes, pauses and stop reasons, repeatable by seed.

Drawn by the closed loop, one session after the other. Pure.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final, Protocol

from proxy.core.turns import StopReason
from proxy.sim import agents
from proxy.sim.prompts import Prompt
from proxy.sim.traces import RecordedThread, RecordedTurn, cut_to, recorded_sessions

CLAUDE_CODE_HEAD_TOKENS: Final = 14_900
"""System prompt and tools of Claude Code, median of the recorded sessions; one client version is assumed for all."""
SUB_AGENT_HEAD_TOKENS: Final = 9_000
_FEWEST_TURNS: Final = 3


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One session from its first turn to its last, or a sub-agent's part of one.

    Attributes:
        head: names the system prompt; sessions with the same one share their first `head_tokens`.
        starts_after: turns of the parent after which a sub-agent starts; the parent then waits for its end.
    """

    head: str
    head_tokens: int
    turns: Sequence[RecordedTurn]
    children: Sequence["SessionPlan"] = ()
    starts_after: int = 0


class Workload(Protocol):
    """A source of sessions."""

    def session(self, rng: Random, *, is_aged: bool = False) -> SessionPlan:
        """The next session; an aged one is under way, as if it had begun before the run."""


class GeneratedAgents:
    """The load of the GPU baseline, section 2: 12,000 shared tokens, 8 to 12 turns, short thoughts."""

    def session(self, rng: Random, *, is_aged: bool = False) -> SessionPlan:
        """See `Workload`."""
        turns: list[RecordedTurn] = []
        context = agents.SHARED_TOKENS + rng.randint(*agents.FIRST_OWN_TOKENS)
        for _ in range(rng.randint(*agents.TURNS)):
            if context + agents.ANSWER_TOKENS[1] > agents.LONGEST_CONTEXT_TOKENS:
                break
            answer = rng.randint(*agents.ANSWER_TOKENS)
            turns.append(RecordedTurn(context, answer, rng.uniform(*agents.THINK_S), StopReason.TOOL_USE))
            context += answer + rng.randint(*agents.TOOL_RESULT_TOKENS)
        past = rng.randrange(len(turns)) if is_aged else 0
        return SessionPlan("agents", agents.SHARED_TOKENS, turns[past:])


class FanOut:
    """An agent that sends out six sub-agents at once, whose system prompt is its own; then it starts anew.

    Field log L60: 12,800 tokens that all six begin with, none of them cached, and a task of a few hundred each.
    """

    _HEAD_TOKENS: Final = 12_800
    _TASK_TOKENS: Final = (200, 800)
    _ANSWER_TOKENS: Final = (100, 300)
    _CHILDREN: Final = 6
    _TURNS: Final = 3

    def session(self, rng: Random, *, is_aged: bool = False) -> SessionPlan:  # noqa: ARG002
        """See `Workload`."""
        head = f"team {rng.getrandbits(60)}"
        children = [SessionPlan(head, self._HEAD_TOKENS, self._turns(rng), (), 1) for _ in range(self._CHILDREN)]
        ask = RecordedTurn(rng.randint(2_000, 4_000), 100, 1.0, StopReason.TOOL_USE)
        conclude = RecordedTurn(6_000, 300, 10.0, StopReason.END_TURN)
        return SessionPlan("leader", 1_500, [ask, conclude], children)

    def _turns(self, rng: Random) -> Sequence[RecordedTurn]:
        turns: list[RecordedTurn] = []
        context = self._HEAD_TOKENS
        for _ in range(self._TURNS):
            context += rng.randint(*self._TASK_TOKENS)
            answer = rng.randint(*self._ANSWER_TOKENS)
            turns.append(RecordedTurn(context, answer, rng.uniform(1.0, 5.0), StopReason.TOOL_USE))
            context += answer
        return turns


class Tenants:
    """Many applications, each with a system prompt of its own, more than one cache holds, and short sessions.

    Made up: 40 prompts of 8,000 to 24,000 tokens, sessions of one to three turns, as assistants of a company have.
    """

    _APPLICATIONS: Final = 40
    _TASK_TOKENS: Final = (200, 3_000)
    _ANSWER_TOKENS: Final = (100, 500)

    def session(self, rng: Random, *, is_aged: bool = False) -> SessionPlan:  # noqa: ARG002
        """See `Workload`."""
        application = rng.randrange(self._APPLICATIONS)
        head_tokens = context = Random(application).randint(8_000, 24_000)
        turns: list[RecordedTurn] = []
        for _ in range(rng.randint(1, 3)):
            context += rng.randint(*self._TASK_TOKENS)
            answer = rng.randint(*self._ANSWER_TOKENS)
            turns.append(RecordedTurn(context, answer, rng.uniform(2.0, 30.0), StopReason.END_TURN))
            context += answer
        return SessionPlan(f"application {application}", head_tokens, turns)


class Writers:
    """Short prompts and long answers, with pauses of up to twice an answer's time: decoding is the limit, not memory.

    Made up, in the spirit of the users' sweep; how many write at once comes and goes.
    """

    _PROMPT_TOKENS: Final = (200, 600)
    _ANSWER_TOKENS: Final = (400, 1_200)
    _THINK_S: Final = (0.0, 30.0)
    _TURNS: Final = 5

    def session(self, rng: Random, *, is_aged: bool = False) -> SessionPlan:
        """See `Workload`."""
        turns: list[RecordedTurn] = []
        context = 0
        for _ in range(rng.randint(1, self._TURNS) if is_aged else self._TURNS):
            context += rng.randint(*self._PROMPT_TOKENS)
            answer = rng.randint(*self._ANSWER_TOKENS)
            turns.append(RecordedTurn(context, answer, rng.uniform(*self._THINK_S), StopReason.END_TURN))
            context += answer
        return SessionPlan("writers", 0, turns)


class ClaudeCode:
    """Recorded Claude Code sessions, in random order.

    Args:
        longest_context_tokens: a session ends before its first turn beyond this.
        longest_think_s: pauses are cut to this, so that every agent keeps pressing; None leaves them as recorded.
        sessions: the recordings; None takes the packaged slice.
    """

    def __init__(
        self,
        *,
        longest_context_tokens: int = 60_000,
        longest_think_s: float | None = 30.0,
        sessions: Sequence[RecordedThread] | None = None,
    ) -> None:
        self._longest_think_s = longest_think_s
        recorded = recorded_sessions() if sessions is None else sessions
        cut = [cut_to(thread, longest_context_tokens) for thread in recorded]
        self._threads = [thread for thread in cut if len(thread.turns) >= _FEWEST_TURNS]
        if not self._threads:
            raise ValueError(f"no recorded session stays below {longest_context_tokens} tokens")

    def session(self, rng: Random, *, is_aged: bool = False) -> SessionPlan:
        """See `Workload`."""
        thread = rng.choice(self._threads)
        past = rng.randrange(len(thread.turns)) if is_aged else 0
        children = [
            SessionPlan("sub-agent", SUB_AGENT_HEAD_TOKENS, self._shortened(child.turns), (), child.starts_after - past)
            for child in thread.children
            if child.starts_after > past
        ]
        turns = self._shortened(thread.turns[past:])
        return SessionPlan("claude-code", CLAUDE_CODE_HEAD_TOKENS, turns, children)

    def _shortened(self, turns: Sequence[RecordedTurn]) -> Sequence[RecordedTurn]:
        limit_s = self._longest_think_s
        if limit_s is None:
            return turns
        return [
            RecordedTurn(
                turn.prompt_tokens, turn.answer_tokens, min(turn.think_s, limit_s), turn.stop, turn.kept_tokens
            )
            for turn in turns
        ]


_identities = count()


class ContentKeys:
    """The block keys of one thread's prompts.

    Each prompt begins with the one before and its answer, unless something was rewritten.
    """

    __slots__ = ("_block_tokens", "_head_blocks", "_identity", "_keys")

    def __init__(self, block_tokens: int, head: str, head_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._head_blocks = head_tokens // block_tokens
        self._keys: list[Hashable] = [("head", head, index) for index in range(self._head_blocks)]
        self._identity = next(_identities)

    def rewrite(self, kept_tokens: int) -> None:
        """Everything after the first `kept_tokens` is new; the head stays."""
        self._keys = self._keys[: max(kept_tokens // self._block_tokens, self._head_blocks)]
        self._identity = next(_identities)

    def prompt(self, prompt_tokens: int, answer_tokens: int) -> Prompt:
        """A prompt of that size, with keys over its answer too."""
        wanted = (prompt_tokens + answer_tokens) // self._block_tokens
        self._keys.extend((self._identity, index) for index in range(len(self._keys), wanted))
        return Prompt(prompt_tokens, self._keys)


@dataclass(slots=True, eq=False)
class Thread:
    """A session or sub-agent while it runs.

    Attributes:
        session: its id; a sub-agent has its parent's and its own `agent` name.
        owner: number of the agent that runs it.
        next_turn: index into the plan.
        messages: how many messages its next prompt has; `epoch` counts how often it was rewritten.
        open_children: sub-agents that it waits for.
        back_at: when it has thought enough, whatever its sub-agents do.
        bytes_per_token: of its text, as the proxy would measure it.
        chain: the digests of its only prompt and `spans` their ends in bytes, if its client names no session.
    """

    session: str
    owner: int
    plan: SessionPlan
    keys: ContentKeys
    bytes_per_token: float
    agent: str = ""
    parent: "Thread | None" = None
    next_turn: int = 0
    messages: int = 1
    epoch: int = 0
    open_children: int = 0
    back_at: float = 0.0
    chain: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()

    @property
    def turn(self) -> RecordedTurn:
        """The turn that is next or under way."""
        return self.plan.turns[self.next_turn]

    @property
    def is_over(self) -> bool:
        """Whether it has no turns left."""
        return self.next_turn >= len(self.plan.turns)


@dataclass(slots=True, eq=False)
class OpenTurn:
    """One turn from the moment its client asks until it ends.

    Attributes:
        asked_at: when the client first asked; `sent_at` when a backend got it, `first_at` when its first token came.
        cached_tokens: what the engine found in its prefix cache.
        refusals: how often its client was told to come back.
    """

    id: int
    thread: Thread
    asked_at: float
    backend: int = 0
    sent_at: float | None = None
    first_at: float | None = None
    cached_tokens: int = 0
    generated_tokens: int = 0
    refusals: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Size of its prompt."""
        return self.thread.turn.prompt_tokens
