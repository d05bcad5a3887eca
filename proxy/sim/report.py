"""What the engine did: the counters it exports and the result of one step.

Written by the engine; read by metrics, drivers and simulations.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the engine started. Tokens unless the name says otherwise.

    Attributes:
        prefix_queries: prompt tokens looked up in the prefix cache, counted at admission.
        prefix_hits: those found there.
        prompt: prompt tokens of requests whose prefill is complete.
        prompt_cached: the part of `prompt` that came from the cache.
        generation: tokens generated.
        preemptions: times a running request lost its blocks.
        finished: requests that ran to their end.
        aborted: requests taken back by their caller.
        steps: engine steps.
    """

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt: int = 0
    prompt_cached: int = 0
    generation: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request entered the running list.

    Attributes:
        hit_tokens: prompt tokens it found in the prefix cache.
        is_first_time: False when it comes back after a preemption.
    """

    request_id: str
    hit_tokens: int
    is_first_time: bool


@dataclass(slots=True)
class StepResult:
    """What one call of `Engine.step` did. All of it becomes visible `duration_s` after the step's start.

    Attributes:
        duration_s: virtual seconds; 0 when there was nothing to do.
        steps: engine steps taken; more than one only when a horizon allowed to pass over uneventful ones.
        batch_tokens: tokens computed or generated in each of them.
        emitted: tokens generated, by request.
        finished: requests that generated their last token; they hold nothing any more.
        admitted: requests that entered the running list.
        preempted: requests that were put back into the waiting line.
    """

    duration_s: float = 0.0
    steps: int = 0
    batch_tokens: int = 0
    emitted: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What the engine's gauges would show after the last step.

    Attributes:
        usage_ratio: blocks held by running requests over all usable ones; cached idle blocks count as free.
    """

    running: int
    waiting: int
    usage_ratio: float
    counters: Counters
