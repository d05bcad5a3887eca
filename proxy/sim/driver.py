"""Plays a simulated engine in real time: maps virtual seconds to the loop's clock and hands out tokens when due.

Called by the HTTP face. The only file that joins the pure engine to a clock; it never decides anything about requests.
"""

import asyncio

from proxy.sim.engine import Engine
from proxy.sim.report import StepResult
from proxy.sim.request_stats import RequestStats
from proxy.sim.sequence import EngineRequest

_LARGEST_LAG_S = 0.05
"""Real seconds the playback may fall behind before it gives up catching up: above a loaded machine's hiccups, and well
below what a client would notice as a burst."""


class EngineDied(Exception):  # noqa: N818 - named after what happened
    """The simulation itself failed; its owner holds the reason."""


class Ticket:
    """One request in flight: yields the number of tokens gained, step by step.

    Attributes:
        cached_tokens: prompt tokens found in the prefix cache; known from the first token on.
    """

    def __init__(self, request: EngineRequest, *, max_tokens: int, finish_reason: str, now: float) -> None:
        self.request = request
        self.max_tokens = max_tokens
        self.finish_reason = finish_reason
        self.cached_tokens = 0
        self.preemptions = 0
        self.arrived_at = now
        self.admitted_at = now
        self.first_at: float | None = None
        self.last_at = now
        self._gains: asyncio.Queue[int] = asyncio.Queue()

    def gain(self, tokens: int) -> None:
        """The engine generated `tokens` more for it."""
        self._gains.put_nowait(tokens)

    def cut(self) -> None:
        """The engine died; whoever waits for tokens must hear of it."""
        self._gains.put_nowait(0)

    async def next_gain(self) -> int:
        """Wait for the next tokens; how many they are. The caller knows how many there will be in all.

        Raises:
            EngineDied: there will be no more.
        """
        tokens = await self._gains.get()
        if tokens == 0:
            raise EngineDied
        return tokens


class Driver:
    """Runs one engine at `speed` virtual seconds per real second.

    When the process cannot keep up, virtual time slows down instead of tokens arriving in bursts.
    """

    def __init__(self, engine: Engine, *, speed: float) -> None:
        if speed <= 0:
            raise ValueError("speed must be above 0")
        self.engine = engine
        self.stats = RequestStats()
        self._speed = speed
        self._tickets: dict[str, Ticket] = {}
        self._wake = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._origin = self._clock()

    @property
    def inflight(self) -> int:
        """Requests that have not ended."""
        return len(self._tickets)

    def submit(self, request: EngineRequest, *, max_tokens: int, finish_reason: str) -> Ticket:
        """Hand a request to the engine.

        Raises:
            ValueError: the engine refuses it.
        """
        self.engine.submit(request, self._virtual_now())
        ticket = Ticket(request, max_tokens=max_tokens, finish_reason=finish_reason, now=self._clock())
        self._tickets[request.request_id] = ticket
        self._wake.set()
        return ticket

    def abort(self, request_id: str) -> None:
        """The request's client is gone; harmless after its end."""
        self.engine.abort(request_id)
        self._tickets.pop(request_id, None)

    async def run(self) -> None:
        """Step for ever; cancelled by the owner."""
        try:
            while True:
                if not self.engine.has_work:
                    self._wake.clear()
                    await self._wake.wait()
                await self._play_until_idle()
        finally:
            for ticket in self._tickets.values():
                ticket.cut()

    async def _play_until_idle(self) -> None:
        ends_at = self._virtual_now()
        while self.engine.has_work:
            result = self.engine.step(ends_at)
            ends_at += result.duration_s
            await self._wait_until(ends_at)
            self._deliver(result)

    def _virtual_now(self) -> float:
        return (self._clock() - self._origin) * self._speed

    async def _wait_until(self, virtual_s: float) -> None:
        delay_s = (virtual_s - self._virtual_now()) / self._speed
        if delay_s < -_LARGEST_LAG_S:
            self._origin -= delay_s
        # Even a step that is late must let the handlers run.
        await asyncio.sleep(max(delay_s, 0))

    def _deliver(self, result: StepResult) -> None:
        now = self._clock()
        stats = self.stats
        stats.iteration_tokens.observe(result.batch_tokens, result.steps)
        for request_id in result.preempted:
            if ticket := self._tickets.get(request_id):
                ticket.preemptions += 1
        for admitted in result.admitted:
            ticket = self._tickets.get(admitted.request_id)
            if ticket and admitted.is_first_time:
                ticket.cached_tokens = admitted.hit_tokens
                # Reported when the step is over; it began that much earlier.
                ticket.admitted_at = max(ticket.arrived_at, now - result.duration_s / self._speed)
                stats.queue_s.observe(ticket.admitted_at - ticket.arrived_at)
        for request_id, tokens in result.emitted.items():
            if ticket := self._tickets.get(request_id):
                self._deliver_tokens(ticket, tokens, now)
        for request_id in result.finished:
            if ticket := self._tickets.pop(request_id, None):
                self._record_end(ticket, now)

    def _deliver_tokens(self, ticket: Ticket, tokens: int, now: float) -> None:
        if ticket.first_at is None:
            ticket.first_at = now
            self.stats.first_token_s.observe(now - ticket.arrived_at)
        else:
            self.stats.token_gap_s.observe(now - ticket.last_at)
        ticket.last_at = now
        ticket.gain(tokens)

    def _record_end(self, ticket: Ticket, now: float) -> None:
        stats, request = self.stats, ticket.request
        first_at = now if ticket.first_at is None else ticket.first_at
        stats.endings[ticket.finish_reason] += 1
        stats.prompt_tokens.observe(request.prompt.n_tokens)
        stats.generation_tokens.observe(request.output_tokens)
        stats.max_tokens.observe(ticket.max_tokens)
        stats.prefill_computed_tokens.observe(request.prompt.n_tokens - ticket.cached_tokens)
        stats.preemptions.observe(ticket.preemptions)
        stats.whole_s.observe(now - ticket.arrived_at)
        stats.inference_s.observe(now - ticket.admitted_at)
        stats.prefill_s.observe(first_at - ticket.admitted_at)
        stats.decode_s.observe(now - first_at)
        if request.output_tokens > 1:
            stats.per_token_s.observe((now - first_at) / (request.output_tokens - 1))
