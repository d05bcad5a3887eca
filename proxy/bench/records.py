"""What happened in a run, written down while it happens. The report is made of nothing else."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TurnRecord:
    """One turn, from the moment its agent wanted it. Times are monotonic seconds; None: not yet, or never.

    Attributes:
        shared_tokens: the part of the prompt that all sessions have.
        is_returning: an earlier turn of its session was answered in this run, so its context was cached once.
        sent_s: when the attempt that was answered, or is under way, was sent.
        refused_wait_s: pauses that refusals and errors asked for.
        queued_s: what the proxy said that it held the answered attempt back.
        answer_pieces: pieces of the answer that came; stands for tokens while usage is not known.
    """

    agent: int
    shared_tokens: int
    is_returning: bool
    wanted_s: float
    sent_s: float | None = None
    first_s: float | None = None
    end_s: float | None = None
    refused_wait_s: float = 0.0
    queued_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    answer_tokens: int | None = None
    answer_pieces: int = 0
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """A refusal or an error: when, and its status or name."""

    time_s: float
    name: str


@dataclass(frozen=True, slots=True)
class EngineSample:
    """All engines together at one moment. None: not said.

    Attributes:
        kv_usage_ratio: the mean over engines.
    """

    time_s: float
    running: int | None
    waiting: int | None
    kv_usage_ratio: float | None
    preemptions: int | None
    prefix_queries_tokens: int | None
    prefix_hits_tokens: int | None


@dataclass(slots=True)
class RunRecord:
    """One run against one URL.

    Attributes:
        begin_s: start of the measured window, after the warm-up.
        end_s: its end.
        sessions: when each finished session ended.
        given_up: when a session ended because the client stopped trying, or was told not to.
    """

    agents: int
    begin_s: float
    end_s: float = 0.0
    turns: list[TurnRecord] = field(default_factory=list)
    sessions: list[float] = field(default_factory=list)
    given_up: list[float] = field(default_factory=list)
    refusals: list[Event] = field(default_factory=list)
    errors: list[Event] = field(default_factory=list)
    samples: list[EngineSample] = field(default_factory=list)
