"""How long one engine step takes, as a linear model of what the step contains.

Called by the scheduler; constants live in the presets, each with its source.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StepTime:
    """Coefficients of the step time, in seconds.

    Attributes:
        base_s: any step (reading the weights, launching kernels).
        per_decoder_s: each sequence that decodes.
        per_context_token_s: each token of the decoders' contexts (reading the KV cache).
        per_prefill_token_s: each prompt token computed.
        per_prefill_position_s: each prompt token computed, times its mean position (attention over what precedes it).
        prefill_base_s: a step that computes prompt tokens, on top of `base_s`; negative where reading the weights
            hides behind the arithmetic.
        host_s_per_token: each prompt token on the host (template, tokenizer, hashing), spent before the engine sees
            the request.
        knee_decoders: from here on each further decoder costs `per_decoder_past_knee_s` besides. No measured machine
            has such a knee: it is there to try what guards against one.
    """

    base_s: float
    per_decoder_s: float
    per_context_token_s: float
    per_prefill_token_s: float
    per_prefill_position_s: float
    prefill_base_s: float = 0.0
    host_s_per_token: float = 0.0
    knee_decoders: int = 0
    per_decoder_past_knee_s: float = 0.0

    def with_mtp(self, depth: int) -> "StepTime":
        """The same engine drafting `depth` tokens a step: +1.5 ms a draft, and 65 % more per decoder and draft.

        Both figures are fitted to a 27B model on a 32 GB card (admission brief 4.4).
        """
        return replace(self, base_s=self.base_s + 0.0015 * depth, per_decoder_s=self.per_decoder_s * (1 + 0.65 * depth))

    def decode_s(self, decoders: int, context_tokens: int) -> float:
        """A step that only decodes."""
        duration_s = self.base_s + self.per_decoder_s * decoders + self.per_context_token_s * context_tokens
        if self.per_decoder_past_knee_s:
            duration_s += self.per_decoder_past_knee_s * max(0, decoders - self.knee_decoders)
        return duration_s

    def step_s(self, decoders: int, context_tokens: int, prefill_tokens: int, prefill_positions: float) -> float:
        """A whole step; `prefill_positions` is the sum over chunks of tokens times their mean position."""
        duration_s = self.decode_s(decoders, context_tokens)
        if prefill_tokens:
            duration_s += self.prefill_base_s + self.per_prefill_token_s * prefill_tokens
            duration_s += self.per_prefill_position_s * prefill_positions
        return duration_s
