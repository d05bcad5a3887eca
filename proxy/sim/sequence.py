"""One request inside the engine: what was asked for, how far it is, which blocks it holds.

Called by the scheduler, which alone changes a `Sequence`.
"""

from dataclasses import dataclass

from proxy.sim.prompts import Prompt


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request as the engine gets it.

    Attributes:
        output_tokens: how many tokens it will generate, at least 1. The simulation decides the answer's length
            beforehand; `max_tokens` and the like are the caller's business.
    """

    request_id: str
    prompt: Prompt
    output_tokens: int


class Sequence:
    """A request's progress. `computed` tokens have KV; `total` are known; decoding means computed = total - 1.

    Attributes:
        blocks: attention blocks in the order of the tokens.
        fixed: the state blocks of a hybrid model.
        published: how many of `blocks` can be found by others.
        hit_tokens: prompt tokens taken from the prefix cache at its last admission.
        phase: fraction of a token, in hundredths, gained but not yet emitted.
        preemptions: how often it lost all its blocks.
        submitted_at: when it joined the waiting line, virtual seconds.
        admitted_at: when it was first admitted, or None.
    """

    __slots__ = (
        "admitted_at",
        "blocks",
        "computed",
        "emitted",
        "fixed",
        "hit_tokens",
        "phase",
        "preemptions",
        "published",
        "request",
        "submitted_at",
        "total",
    )

    def __init__(self, request: EngineRequest, *, now: float, phase: int) -> None:
        self.request = request
        self.total = request.prompt.n_tokens
        self.computed = 0
        self.emitted = 0
        self.blocks: list[int] = []
        self.fixed: list[int] = []
        self.published = 0
        self.hit_tokens = 0
        self.phase = phase
        self.preemptions = 0
        self.submitted_at = now
        self.admitted_at: float | None = None

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token still has to be computed."""
        return self.emitted > 0 and self.computed == self.total - 1

    @property
    def remaining(self) -> int:
        """Tokens still to be generated."""
        return self.request.output_tokens - self.emitted

    def rewind(self) -> None:
        """Forget all progress in KV, after its blocks were released; what was generated stays known."""
        self.blocks = []
        self.fixed = []
        self.published = 0
        self.computed = 0
        self.preemptions += 1
