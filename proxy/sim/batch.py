"""What one engine step computes, summed up while the scheduler fills it.

Called by the engine; decides nothing.
"""

from proxy.sim.sequence import Sequence


class Batch:
    """One step's work.

    Attributes:
        budget: tokens that may still be scheduled in it.
        decoders: sequences that decode; `context_tokens` is the sum of their contexts.
        prefill_tokens: prompt tokens computed; `prefill_positions` sums each chunk's tokens times its mean position.
        scheduled: each sequence with its tokens in this step, in order.
    """

    __slots__ = ("budget", "context_tokens", "decoders", "prefill_positions", "prefill_tokens", "scheduled")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.decoders = 0
        self.context_tokens = 0
        self.prefill_tokens = 0
        self.prefill_positions = 0.0
        self.scheduled: list[tuple[Sequence, int]] = []

    def add(self, sequence: Sequence, tokens: int, *, drafts: int) -> None:
        """`tokens` of `sequence` are computed in this step."""
        self.scheduled.append((sequence, tokens))
        if sequence.is_decoding:
            self.decoders += 1
            self.context_tokens += sequence.total
            self.budget -= tokens + drafts
        else:
            self.prefill_tokens += tokens
            self.prefill_positions += tokens * (sequence.computed + tokens / 2)
            self.budget -= tokens
