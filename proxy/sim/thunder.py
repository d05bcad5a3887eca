"""ThunderAgent's rules for programs (sessions), as the admission brief 1.7 describes them, for comparison.

Every 5 s: when the active programs' contexts, those in a tool call included, exceed the cache, the smallest in a tool
call are paused, then the smallest in the engine are marked to pause at their turn's end. Paused and new programs are
let in, smallest first, while they fit beside the rest, where a program in a tool call counts 2^-t after t seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from proxy.sim.policies import Policy
from proxy.sim.report import EngineReport
from proxy.sim.workloads import OpenTurn, Thread

_TICK_S: Final = 5.0
_BUFFER_TOKENS: Final = 100
_DECODE_TOKENS: Final = 512
_FORCED_S: Final = 1_800.0


@dataclass(slots=True, eq=False)
class _Program:
    home: int
    context_tokens: int
    turns: int = 0
    """Turns in the engine now; none means that it is in a tool call."""
    acting_since: float = 0.0
    is_active: bool = False
    is_marked: bool = False
    has_run: bool = False


class Thunder(Policy):
    """Programs are active or paused; see the module.

    Args:
        name: as shown.
        backends: how many.
        capacity_tokens: of each.
    """

    def __init__(self, name: str, backends: int, capacity_tokens: int) -> None:
        super().__init__(name, backends)
        self._capacity_tokens = capacity_tokens
        self._programs: dict[tuple[str, str], _Program] = {}
        self._usage = [0.0] * backends
        self._next_tick = 0.0

    def arrive(self, turn: OpenTurn, now: float) -> bool:
        """See `Policy`."""
        key = turn.thread.session, turn.thread.agent
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = _Program(self._roomiest(now), turn.prompt_tokens)
            program.is_active = self._fits(program, program.home, now)
        program.context_tokens = turn.prompt_tokens
        return super().arrive(turn, now)

    def _choose(self, now: float) -> Iterable[OpenTurn]:  # noqa: ARG002
        for turn in self.waiting.values():
            program = self._program(turn.thread)
            if program.is_active:
                turn.backend = program.home
                program.turns += 1
                program.has_run = True
                yield turn

    def end(self, turn: OpenTurn, now: float, *, is_complete: bool) -> None:
        """See `Policy`."""
        super().end(turn, now, is_complete=is_complete)
        program = self._program(turn.thread)
        program.turns -= 1
        program.context_tokens = turn.prompt_tokens + turn.generated_tokens
        program.acting_since = now
        if program.is_marked and not program.turns:
            program.is_active = program.is_marked = False
        if turn.thread.agent and turn.thread.next_turn + 1 >= len(turn.thread.plan.turns):
            del self._programs[turn.thread.session, turn.thread.agent]

    def session_over(self, thread: Thread) -> None:
        """Programs are released at their end: ThunderAgent's clients say so."""
        self._programs.pop((thread.session, thread.agent), None)

    def report(self, backend: int, report: EngineReport, now: float) -> None:
        """See `Policy`."""
        self._usage[backend] = report.usage_ratio
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            for name in range(self.backends):
                self._pause(name)
            self._resume(now)

    def _pause(self, backend: int) -> None:
        active = [program for program in self._of(backend) if program.is_active and not program.is_marked]
        over = sum(self._demand(program) for program in active) - self._shared(backend) - self._capacity_tokens
        for program in sorted(active, key=lambda one: (one.turns > 0, one.context_tokens)):
            if over <= 0:
                return
            over -= self._demand(program)
            if program.turns:
                program.is_marked = True
            else:
                program.is_active = False

    def _resume(self, now: float) -> None:
        wanting = {id(self._program(turn.thread)): turn for turn in self.waiting.values()}
        asleep = [self._program(turn.thread) for turn in wanting.values()]
        asleep = [program for program in asleep if not program.is_active]
        for program in sorted(asleep, key=lambda one: (not one.has_run, one.context_tokens)):
            home = self._roomiest(now)
            if self._fits(program, home, now) or now - wanting[id(program)].asked_at > _FORCED_S:
                program.home, program.is_active = home, True

    def _fits(self, program: _Program, backend: int, now: float) -> bool:
        return self._decayed(backend, now) + self._demand(program) <= self._capacity_tokens

    def _decayed(self, backend: int, now: float) -> float:
        total = -self._shared(backend)
        for program in self._of(backend):
            if program.is_active and program.has_run:
                is_acting = program.turns == 0
                total += self._demand(program) * (2.0 ** (program.acting_since - now) if is_acting else 1.0)
            elif program.is_active:
                total += self._demand(program)
        return total

    def _demand(self, program: _Program) -> int:
        return program.context_tokens + _BUFFER_TOKENS + (_DECODE_TOKENS if program.turns else 0)

    def _shared(self, backend: int) -> float:
        """What contexts in the engine share: their sum less what the usage gauge shows."""
        reasoning = sum(program.context_tokens for program in self._of(backend) if program.turns)
        return max(0.0, reasoning - self._usage[backend] * self._capacity_tokens)

    def _roomiest(self, now: float) -> int:
        return min(range(self.backends), key=lambda backend: self._decayed(backend, now))

    def _of(self, backend: int) -> list[_Program]:
        return [program for program in self._programs.values() if program.home == backend]

    def _program(self, thread: Thread) -> _Program:
        return self._programs[thread.session, thread.agent]
