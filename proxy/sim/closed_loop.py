"""A fixed number of agents, each running one session after the other, before simulated engines and one policy.

Everything happens in virtual time and repeats by its seed. Pure; called by the simulate command and by tests.
"""

from functools import partial
from random import Random

from proxy.sim.loop import Loop
from proxy.sim.policies import Policy
from proxy.sim.presets import EngineConfig
from proxy.sim.trouble import BYTES_PER_TOKEN, Trouble
from proxy.sim.workloads import ContentKeys, SessionPlan, Thread, Workload


class ClosedLoop(Loop):
    """Agents, engines and a policy.

    Args:
        config: the engines.
        workload: what the agents do.
        policy: decides; made for as many backends as it says.
        agents: how many.
        seed: of everything that is drawn.
        trouble: what goes wrong.
    """

    def __init__(
        self,
        config: EngineConfig,
        workload: Workload,
        policy: Policy,
        agents: int,
        *,
        seed: int = 1,
        trouble: Trouble | None = None,
    ) -> None:
        super().__init__(config, policy, agents=agents, seed=seed, trouble=trouble)
        self._workload = workload
        # Each agent draws its own sessions, so that policies compete for the very same work.
        self._rngs = {agent: Random(f"{seed}/{agent}") for agent in range(agents)}

    def _set_out(self) -> None:
        for agent in range(self._agents):
            self._at(self._rngs[agent].uniform(0.0, 5.0), partial(self._begin_session, agent, is_aged=True))
        super()._set_out()
        trouble = self._trouble
        for guest in range(self._agents, self._agents + trouble.burst):
            self._rngs[guest] = Random(f"{self._seed}/{guest}")
            self._at(trouble.burst_at_s, partial(self._begin_session, guest))

    def _begin_session(self, agent: int, now: float, *, is_aged: bool = False) -> None:
        rng = self._rngs[agent]
        plan = self._workload.session(rng, is_aged=is_aged)
        self._ask(self._thread(plan, f"session-{next(self._ids)}", agent), now)

    def _thread(self, plan: SessionPlan, session: str, owner: int, parent: Thread | None = None) -> Thread:
        rng, error = self._rngs[owner], self._trouble.token_error
        thread = Thread(
            session,
            owner,
            plan,
            ContentKeys(self._config.block_tokens, plan.head, plan.head_tokens),
            BYTES_PER_TOKEN * (1 + rng.uniform(-error, error)),
            parent=parent,
        )
        if parent is None and rng.random() < self._trouble.abandoned:
            thread.plan = SessionPlan(plan.head, plan.head_tokens, plan.turns[: rng.randint(1, len(plan.turns))])
        return thread

    def _has_ended(self, thread: Thread, now: float) -> None:
        """It thinks, or is over."""
        is_over = thread.is_over
        if thread.parent is not None:
            if is_over:
                thread.parent.open_children -= 1
                self._go_on(thread.parent, now)
            else:
                self._at(now + thread.turn.think_s, partial(self._ask, thread))
            return
        if is_over:
            if thread.owner < self._agents:
                self._at(now + 1.0, partial(self._begin_session, thread.owner))
            return
        for index, child in enumerate(thread.plan.children):
            if child.starts_after == thread.next_turn:
                sub = self._thread(child, thread.session, thread.owner, thread)
                sub.agent = f"agent-{index}"
                thread.open_children += 1
                self._at(now + 0.1, partial(self._ask, sub))
        thread.back_at = now + thread.turn.think_s
        self._go_on(thread, now)

    def _go_on(self, thread: Thread, now: float) -> None:
        """A thread comes back when it has thought enough and its sub-agents are done."""
        if not thread.open_children:
            self._at(max(now, thread.back_at), partial(self._ask, thread))
