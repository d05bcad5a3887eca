"""The engines worth imitating: the first users' machines and the two H200 shapes that were measured.

Called by whoever builds an engine. Each constant says where it comes from; none is tuned to a single measured point.
"""

from dataclasses import dataclass, replace

from proxy.sim.step_time import StepTime

TOKENS_PER_STEP_HUNDREDTHS = (100, 162, 205, 235)
"""Tokens a decoder gains per step, in hundredths, by MTP depth 0 to 3 (admission brief 4.4). Whole numbers so that
summing them is exact and runs repeat bit for bit."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What a vLLM engine is started with, and how fast its machine is.

    Attributes:
        block_tokens: tokens per attention block; large on hybrid models, whose state pages set the size.
        num_gpu_blocks: blocks in the pool, the null block that vLLM keeps for itself included.
        state_blocks: fixed blocks a running request holds at MTP depth 0; multiplied by 1 + depth.
        mtp: tokens drafted per step, 0 to 3.
        watermark_ratio: part of the pool kept free when something runs already (vLLM's default is none).
        image_tokens: what one image costs as prompt tokens.
        tokens_per_step: for each MTP depth, the tokens a decoder gains per step, in hundredths.
        step_time: the machine's speed at MTP depth 0; `effective_step_time` adds the drafts.
    """

    name: str
    description: str
    block_tokens: int
    num_gpu_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    step_time: StepTime
    state_blocks: int = 0
    mtp: int = 0
    watermark_ratio: float = 0.0
    image_tokens: int = 1_024
    cache_dtype: str = "auto"
    tokens_per_step: tuple[int, ...] = TOKENS_PER_STEP_HUNDREDTHS

    def __post_init__(self) -> None:
        if not 0 <= self.mtp < len(self.tokens_per_step):
            raise ValueError(f"MTP depth must be 0 to {len(self.tokens_per_step) - 1}, got {self.mtp}")
        if self.blocks_for(self.max_model_len) > self.usable_blocks:
            raise ValueError(f"{self.name}: one request of {self.max_model_len} tokens does not fit the pool")

    @property
    def usable_blocks(self) -> int:
        """Blocks requests can hold: all but the null block."""
        return self.num_gpu_blocks - 1

    @property
    def fixed_blocks(self) -> int:
        """Blocks a running request holds whatever its length (beta in the admission brief)."""
        return self.state_blocks * (1 + self.mtp)

    @property
    def tokens_per_step_hundredths(self) -> int:
        """Tokens a decoder gains per step, in hundredths."""
        return self.tokens_per_step[self.mtp]

    @property
    def effective_step_time(self) -> StepTime:
        """Step time with the drafts' cost."""
        return self.step_time.with_mtp(self.mtp) if self.mtp else self.step_time

    @property
    def max_concurrency(self) -> float:
        """How many requests of `max_model_len` fit, as vLLM computes and exports it."""
        return self.num_gpu_blocks / self.blocks_for(self.max_model_len)

    @property
    def size_tokens(self) -> int:
        """KV capacity in tokens as vLLM prints it: right for requests of `max_model_len`, optimistic for shorter."""
        return int(self.max_concurrency * self.max_model_len)

    def blocks_for(self, tokens: int) -> int:
        """Blocks a running request of `tokens` tokens holds."""
        return -(-tokens // self.block_tokens) + self.fixed_blocks


_CARD_32GB = EngineConfig(
    name="card-32gb",
    description="one 32 GB card, 27B hybrid model, 4-bit weights, 128k KV tokens, MTP 3 (users' machine A)",
    block_tokens=808,
    # Dividing the printed 128,341 by 808 gives 158 blocks (39, 22, 15 and 12 requests at once at MTP 0 to 3), but vLLM
    # prints concurrency times max_model_len, in which a request's fixed blocks are charged already. 175 blocks print
    # 128,382 at MTP 3, and they hold 43, 24, 17 and 13, which is what the sweeps show: 128 requests in three waves at
    # MTP 0, 24 in one at MTP 1, 16 in one at MTP 2. The context limit is not stated; 96k is the round one that prints
    # within 50 tokens.
    num_gpu_blocks=175,
    max_model_len=98_304,
    max_num_seqs=256,
    max_num_batched_tokens=2_048,
    state_blocks=3,
    mtp=3,
    step_time=StepTime(  # admission brief 4.4, fitted to the sweep without MTP
        base_s=0.0267,
        per_decoder_s=0.00059,
        per_context_token_s=3.7e-8,
        per_prefill_token_s=0.00030,
        per_prefill_position_s=2.6e-9,
    ),
)

_TWO_24GB_RDNA = EngineConfig(
    name="two-24gb-rdna",
    description="two 24 GB cards (RDNA3), 27B hybrid model, int8 KV, 638k KV tokens, 8 sequences (users' machine B)",
    block_tokens=1_616,  # pages of the 27B with one-byte KV (admission brief 1.3)
    num_gpu_blocks=414,  # prints 638,397 tokens and 4.87 times 131,072
    max_model_len=131_072,
    max_num_seqs=8,
    max_num_batched_tokens=8_192,
    state_blocks=3,
    cache_dtype="int8_per_token_head",
    step_time=StepTime(
        # From the users' table B: 56.2 tok/s alone is 17.8 ms a step; 40.7 at 120k context is 24.6 ms, so 5.6e-8 s a
        # token; 30.9 each at 8 parallel is 32.4 ms, so 2.1 ms a decoder. First token at 30k and 120k came after 11.03
        # and 34.24 s, which no rising line meets: 0.31 ms a token is 16 % below the one and 9 % above the other.
        base_s=0.0157,
        per_decoder_s=0.0021,
        per_context_token_s=5.6e-8,
        per_prefill_token_s=0.00031,
        per_prefill_position_s=0.0,
    ),
)

_TWO_24GB_ADA = EngineConfig(
    name="two-24gb-ada",
    description="two 24 GB cards (SM89), 27B FP8 model and KV, 329k KV tokens, 4 sequences, MTP 3 (users' machine C)",
    block_tokens=1_616,
    num_gpu_blocks=220,  # prints 329,552 tokens and 1.26 times 262,144
    max_model_len=262_144,
    max_num_seqs=4,
    max_num_batched_tokens=8_192,
    state_blocks=3,
    mtp=3,
    cache_dtype="fp8_e4m3",
    # Acceptance is higher here than on machine A: mean length 3.63 at four streams, and 1.95 and 2.73 follow for depths
    # 1 and 2 from their 58.3 and 77.9 tok/s.
    tokens_per_step=(100, 195, 273, 363),
    step_time=StepTime(
        # From the users' figures C without MTP: 31.3 tok/s alone is 31.9 ms a step; at 4 and 8 parallel they saw no
        # cost a decoder (141.5 and 260.8), so machine A's is halved for two cards. First token of 512 in 185 ms.
        # One stream comes out within 3 % at every depth; four with drafts come out 6 to 50 % above what they saw.
        base_s=0.0314,
        per_decoder_s=0.00030,
        per_context_token_s=1.9e-8,
        per_prefill_token_s=0.00028,
        per_prefill_position_s=1.3e-9,
    ),
)

_H200_8B = EngineConfig(
    name="h200-8b",
    description="one H200, 8B shape, KV held to 131k tokens (measured: GPU baseline)",
    block_tokens=16,
    num_gpu_blocks=8_200,
    max_model_len=131_072,
    max_num_seqs=128,
    max_num_batched_tokens=8_192,
    step_time=StepTime(
        # GPU baseline, section 5. Decode fit: 5.20 + 0.0053 B + 0.0329 T(k) ms. Prefill fit: 21 ms fixed, of which 5.2
        # are the step itself, + 0.0188 ms a token + 1.07e-6 ms a token and position; 0.0023 ms a token on the host.
        base_s=0.00520,
        per_decoder_s=0.0000053,
        per_context_token_s=3.29e-8,
        per_prefill_token_s=0.0000188,
        per_prefill_position_s=1.07e-9,
        prefill_base_s=0.0158,
        host_s_per_token=0.0000023,
    ),
)

_H200_32B = replace(
    _H200_8B,
    name="h200-32b",
    description="one H200, 32B shape, KV held to 131k tokens: a consumer card's ratio (measured: GPU baseline)",
    step_time=StepTime(
        # GPU baseline, section 5. Decode fit: 18.23 + 0.0257 B + 0.0559 T(k) ms. Prefill fit: 8 ms fixed, less than a
        # decode step because reading the weights hides behind the arithmetic; 0.0995, 3.33e-6 and 0.0031 as above.
        base_s=0.01823,
        per_decoder_s=0.0000257,
        per_context_token_s=5.59e-8,
        per_prefill_token_s=0.0000995,
        per_prefill_position_s=3.33e-9,
        prefill_base_s=-0.01023,
        host_s_per_token=0.0000031,
    ),
)

PRESETS: dict[str, EngineConfig] = {
    config.name: config for config in (_CARD_32GB, _TWO_24GB_RDNA, _TWO_24GB_ADA, _H200_8B, _H200_32B)
}


def preset(name: str, *, mtp: int | None = None) -> EngineConfig:
    """The preset called `name`, with another MTP depth if one is given.

    Raises:
        ValueError: no such preset, or a depth it cannot hold; the message names the choices.
    """
    try:
        config = PRESETS[name]
    except KeyError:
        raise ValueError(f"no preset {name!r}; choose from {', '.join(PRESETS)}") from None
    return config if mtp is None else replace(config, mtp=mtp)
