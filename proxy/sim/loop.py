"""Simulated engines and one policy in virtual time, and the turns that somebody brings to them.

Who brings them, and what follows when one has ended, say `closed_loop` (agents) and `open_loop` (a recorded trace).
Everything repeats by its seed. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final

from proxy.sim.engine import Engine
from proxy.sim.policies import Policy
from proxy.sim.presets import EngineConfig
from proxy.sim.report import StepResult
from proxy.sim.scoreboard import Scoreboard, Summary
from proxy.sim.sequence import EngineRequest
from proxy.sim.trouble import ANNOYED_S, BACKOFF_S, PATIENCE_REFUSALS, Trouble
from proxy.sim.workloads import OpenTurn, Thread

_LONGEST_LOOK_S: Final = 0.25
"""With several engines one may not be passed over further than this, since another's end may send work to it."""


@dataclass(slots=True)
class _Backend:
    engine: Engine
    is_stepping: bool = False
    generation: int = 0
    turns: dict[str, OpenTurn] = field(default_factory=dict)


class Loop:
    """Engines, a policy, and turns on their way.

    Args:
        config: the engines.
        policy: decides; made for as many backends as it says.
        agents: how many share the work, for who counts how it is shared.
        seed: of everything that is drawn.
        trouble: what goes wrong.
    """

    def __init__(
        self, config: EngineConfig, policy: Policy, *, agents: int = 0, seed: int = 1, trouble: Trouble | None = None
    ) -> None:
        self._config = config
        self._policy = policy
        self._agents = agents
        self._seed = seed
        self._trouble = trouble or Trouble()
        self._rng = Random(seed)
        self._backends = [_Backend(Engine(config, seed=seed + index)) for index in range(policy.backends)]
        policy.see_engines([backend.engine for backend in self._backends])
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._ids = count(1)
        self._open: dict[int, OpenTurn] = {}
        self._wake_at: float | None = None
        self._is_dirty = False
        self._board = Scoreboard(0.0, agents)

    def run(self, warm_up_s: float, window_s: float, progress: Callable[[float], None] | None = None) -> Summary:
        """Let it run; what happened in the window after the warm-up."""
        self._board = Scoreboard(warm_up_s, self._agents)
        end_at = warm_up_s + window_s
        self._set_out()
        now = 0.0
        while self._events and self._events[0][0] <= end_at:
            now, _, event = heappop(self._events)
            event(now)
            if self._events and self._events[0][0] <= now:
                continue  # whatever else happens at this very moment comes first
            self._let_start(now)
            for backend in self._backends:
                self._step(backend, now, end_at)
            if progress is not None:
                progress(now / end_at)
        unanswered = [turn for turn in self._open.values() if turn.first_at is None]
        oldest = max((end_at - turn.asked_at for turn in unanswered), default=0.0)
        return self._board.summary(
            self._policy.name,
            self._seed,
            window_s,
            len(self._backends),
            oldest_pending_s=oldest,
            facts=self._policy.facts(),
        )

    def _set_out(self) -> None:
        """What is known from the start to happen: reports, and trouble; whoever brings turns adds these."""
        trouble = self._trouble
        for index in range(len(self._backends)):
            self._at(trouble.poll_interval_s, partial(self._poll, index))
        if trouble.restart_at_s is not None:
            self._at(trouble.restart_at_s, self._restart)

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heappush(self._events, (when, next(self._order), event))

    # Turns

    def _ask(self, thread: Thread, now: float) -> None:
        """A thread's next turn begins."""
        turn = OpenTurn(next(self._ids), thread, now)
        kept = thread.turn.kept_tokens
        if kept is not None and thread.next_turn:
            thread.keys.rewrite(kept)
            thread.epoch += 1
            thread.messages = 1
        self._open[turn.id] = turn
        self._arrive(turn, now)

    def _arrive(self, turn: OpenTurn, now: float) -> None:
        self._is_dirty = True
        if not self._policy.arrive(turn, now):
            self._refuse(turn, now)
            return
        deadline = self._policy.deadline(turn)
        refusals = turn.refusals
        if deadline < float("inf"):
            self._at(deadline, partial(self._check_deadline, turn, refusals))

    def _check_deadline(self, turn: OpenTurn, refusals: int, now: float) -> None:
        if turn.id in self._policy.waiting and turn.refusals == refusals:
            self._refuse(turn, now)

    def _refuse(self, turn: OpenTurn, now: float) -> None:
        self._policy.give_up(turn, now)
        self._is_dirty = True
        turn.refusals += 1
        self._board.refusals += 1
        wait_s = BACKOFF_S[min((turn.refusals - 1) % PATIENCE_REFUSALS, len(BACKOFF_S) - 1)]
        if turn.refusals % PATIENCE_REFUSALS == 0:
            self._board.gave_up += 1
            wait_s = ANNOYED_S
        self._at(now + wait_s, partial(self._arrive, turn))

    def _let_start(self, now: float) -> None:
        if not self._is_dirty and (self._wake_at is None or now < self._wake_at):
            return
        self._is_dirty = False
        for turn in self._policy.start(now):
            turn.sent_at = now
            turn.first_at = None
            turn.generated_tokens = 0
            self._board.sent(turn, now)
            host_s = self._config.step_time.host_s_per_token * turn.prompt_tokens
            backend = self._backends[turn.backend]
            backend.turns[str(turn.id)] = turn
            if host_s:
                self._at(now + host_s, partial(self._submit, turn, backend.generation))
            else:
                self._submit(turn, backend.generation, now)
        self._wake_at = self._policy.next_event_at(now)
        if self._wake_at is not None:
            self._at(max(self._wake_at, now), self._wake)

    def _wake(self, now: float) -> None:
        """The moment itself is what is needed: `_let_start` follows every event."""

    def _submit(self, turn: OpenTurn, generation: int, now: float) -> None:
        backend = self._backends[turn.backend]
        if backend.generation == generation:
            planned = turn.thread.turn
            prompt = turn.thread.keys.prompt(planned.prompt_tokens, planned.answer_tokens)
            backend.engine.submit(EngineRequest(str(turn.id), prompt, planned.answer_tokens), now)

    def _finish(self, turn: OpenTurn, now: float) -> None:
        self._policy.end(turn, now, is_complete=True)
        del self._open[turn.id]
        thread = turn.thread
        thread.next_turn += 1
        thread.messages += 2
        is_over = thread.is_over
        self._board.finished(turn, now, is_last=is_over and thread.parent is None)
        if is_over and thread.parent is None:
            self._policy.session_over(thread)
        self._has_ended(thread, now)

    def _has_ended(self, thread: Thread, now: float) -> None:
        """A turn of a thread ended well: what follows."""

    # Engines

    def _step(self, backend: _Backend, now: float, end_at: float) -> None:
        if backend.is_stepping or not backend.engine.has_work:
            return
        until = self._events[0][0] if self._events else end_at
        if len(self._backends) > 1:
            until = min(until, now + _LONGEST_LOOK_S)
        result = backend.engine.step(now, until)
        backend.is_stepping = True
        generation = backend.generation
        self._at(now + result.duration_s, partial(self._stepped, backend, generation, result))

    def _stepped(self, backend: _Backend, generation: int, result: StepResult, now: float) -> None:
        if backend.generation != generation:
            return
        backend.is_stepping = False
        self._board.stepped(sum(result.emitted.values()), result.duration_s, len(result.preempted), now)
        for admitted in result.admitted:
            if admitted.is_first_time:
                turn = backend.turns[admitted.request_id]
                turn.cached_tokens = admitted.hit_tokens
                self._board.admitted(turn, is_returning=turn.thread.next_turn > 0, now=now)
        for request_id, tokens in result.emitted.items():
            turn = backend.turns[request_id]
            if turn.first_at is None:
                turn.first_at = now
                self._board.first_token(turn, now)
                self._policy.first_token(turn, now)
                self._is_dirty = True
            turn.generated_tokens += tokens
            self._policy.generated(turn)
        for request_id in result.finished:
            self._is_dirty = True
            self._finish(backend.turns.pop(request_id), now)

    def _poll(self, index: int, now: float) -> None:
        report = self._backends[index].engine.report()
        self._board.scraped(report, now)
        if self._rng.random() >= self._trouble.dropped_polls:
            self._policy.report(index, report, now)
            self._is_dirty = True
        self._at(now + self._trouble.poll_interval_s, partial(self._poll, index))

    def _restart(self, now: float) -> None:
        """The first engine is another process now; the clients of its turns see an error and come back."""
        backend = self._backends[0]
        lost = list(backend.turns.values())
        backend.turns.clear()
        backend.engine = Engine(self._config, seed=self._seed)
        self._policy.see_engines([each.engine for each in self._backends])
        backend.generation += 1
        backend.is_stepping = False
        self._policy.restarted(0, now)
        for turn in lost:
            self._policy.end(turn, now, is_complete=False)
            self._at(now + BACKOFF_S[0], partial(self._arrive, turn))
        self._is_dirty = True
