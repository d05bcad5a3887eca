"""The simulation against what was measured: the same sweeps in virtual time, and how far off they are.

Called by `python -m proxy.sim compare` and by the test that holds the simulation to its bounds. Pure.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from statistics import mean, median

from proxy.sim.agents import Agents, AgentsResult
from proxy.sim.engine import Engine
from proxy.sim.measurements import CARD_32GB, CARD_32GB_QUEUE, H200_8B_AGENTS, H200_8B_PLAIN, MeasuredAgents
from proxy.sim.presets import EngineConfig, preset
from proxy.sim.prompts import Prompt
from proxy.sim.sequence import EngineRequest

BURST_PROMPT_TOKENS = 16
"""The users do not state their prompts; the fit of the step time leaves room for no more than a sentence."""
OUTPUT_TOKENS = 256
LOOP_PROMPT_TOKENS = 512
AGENTS_WARM_UP_S = 60.0
AGENTS_WINDOW_S = 120.0


@dataclass(frozen=True, slots=True)
class Burst:
    """What a burst of requests took. `waited` is the most that waited at once."""

    wall_s: float
    latency_s: float
    output_tokens_per_s: float
    waited: int


@dataclass(frozen=True, slots=True)
class Loop:
    """What a closed loop of clients gave."""

    output_tokens_per_s: float
    first_token_p50_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured figure and its simulated counterpart.

    Attributes:
        sweep: which sweep and setting, e.g. `card-32gb MTP 3`.
        load: parallel requests.
        unit: of both figures.
    """

    sweep: str
    load: int
    unit: str
    measured: float
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured


@dataclass(frozen=True, slots=True)
class QueueStart:
    """Where queueing starts: measured between two levels, simulated exactly."""

    mtp: int
    fits_measured: int
    queues_measured: int
    queues_simulated: int

    @property
    def is_inside(self) -> bool:
        """Whether the simulated figure lies in the measured bracket."""
        return self.fits_measured < self.queues_simulated <= self.queues_measured


def run_burst(config: EngineConfig, requests: int) -> Burst:
    """Send `requests` at once and wait for all."""
    engine = _burst(config, requests)
    now = 0.0
    waited = 0
    latencies_s: list[float] = []
    while engine.has_work:
        result = engine.step(now, inf)
        now += result.duration_s
        waited = max(waited, engine.waiting)
        latencies_s += [now] * len(result.finished)
    return Burst(now, mean(latencies_s), requests * OUTPUT_TOKENS / now, waited)


def _burst(config: EngineConfig, requests: int) -> Engine:
    engine = Engine(config)
    for number in range(requests):
        engine.submit(EngineRequest(str(number), Prompt(BURST_PROMPT_TOKENS), OUTPUT_TOKENS), 0.0)
    return engine


def run_loop(config: EngineConfig, clients: int) -> Loop:
    """Clients that each send the next request when the last is answered: three each, and at least six in all."""
    engine = Engine(config)
    total = max(6, 3 * clients)
    host_s = config.step_time.host_s_per_token * LOOP_PROMPT_TOKENS
    coming = deque((host_s, number) for number in range(min(clients, total)))
    sent = len(coming)
    asked_at = {str(number): 0.0 for _, number in coming}
    first_token_s: list[float] = []
    now = 0.0
    while coming or engine.has_work:
        if not engine.has_work:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            at, number = coming.popleft()
            engine.submit(EngineRequest(str(number), Prompt(LOOP_PROMPT_TOKENS), OUTPUT_TOKENS), at)
        result = engine.step(now, coming[0][0] if coming else inf)
        now += result.duration_s
        first_token_s += [now - asked_at.pop(request_id) for request_id in result.emitted if request_id in asked_at]
        for _ in result.finished:
            if sent < total:
                coming.append((now + host_s, sent))
                asked_at[str(sent)] = now
                sent += 1
    return Loop(total * OUTPUT_TOKENS / now, median(first_token_s))


def compare_card() -> Iterator[Comparison]:
    """Users' machine A at every MTP depth and load: tokens per second and mean latency."""
    for mtp, levels in CARD_32GB.items():
        config = preset("card-32gb", mtp=mtp)
        for level in levels:
            burst = run_burst(config, level.requests)
            sweep = f"card-32gb MTP {mtp}"
            yield Comparison(sweep, level.requests, "tok/s", level.output_tokens_per_s, burst.output_tokens_per_s)
            yield Comparison(sweep, level.requests, "latency s", level.latency_s, burst.latency_s)


def compare_h200() -> Iterator[Comparison]:
    """The plain sweep on the H200: tokens per second and first token."""
    config = preset("h200-8b")
    for level in H200_8B_PLAIN:
        loop = run_loop(config, level.clients)
        yield Comparison("h200-8b plain", level.clients, "tok/s", level.output_tokens_per_s, loop.output_tokens_per_s)
        yield Comparison("h200-8b plain", level.clients, "TTFT s", level.first_token_p50_s, loop.first_token_p50_s)


def compare_queue_starts() -> Iterator[QueueStart]:
    """Users' machine A: the smallest burst of which one request has to wait."""
    for mtp, (fits, queues) in CARD_32GB_QUEUE.items():
        config = preset("card-32gb", mtp=mtp)
        smallest = next(requests for requests in range(1, 4 * queues) if _does_one_wait(config, requests))
        yield QueueStart(mtp, fits, queues, smallest)


def _does_one_wait(config: EngineConfig, requests: int) -> bool:
    """Whether a burst leaves somebody waiting after its first step."""
    engine = _burst(config, requests)
    engine.step(0.0)
    return engine.waiting > 0


def compare_agents() -> Iterator[tuple[MeasuredAgents, AgentsResult]]:
    """Coding agents on the H200: measured and simulated."""
    config = preset("h200-8b")
    for level in H200_8B_AGENTS:
        yield level, Agents(config, level.agents).run(AGENTS_WARM_UP_S, AGENTS_WINDOW_S)
