"""Many decode steps at once, while nothing can happen but decoding: what lets simulated hours run in seconds.

Called by the engine, which has made sure that nobody can be admitted meanwhile. The tokens are exactly those of single
steps; the time is theirs too, up to the rounding of a mean context.
"""

from collections.abc import Sequence as Sequences
from math import inf

from proxy.sim.presets import EngineConfig
from proxy.sim.report import StepResult
from proxy.sim.sequence import Sequence
from proxy.sim.step_time import StepTime

_MOST_STEPS = 1_000_000


def uneventful_steps(running: Sequences[Sequence], config: EngineConfig, speed: StepTime, horizon_s: float) -> int:
    """How many steps from now on only decode, with no new block and no end, and are over within `horizon_s`."""
    drafts, rate = config.mtp, config.tokens_per_step_hundredths
    if not running or len(running) * (1 + drafts) > config.max_num_batched_tokens:
        return 0
    fewest = _MOST_STEPS
    contexts = 0
    for sequence in running:
        if not sequence.is_decoding:
            return 0
        contexts += sequence.total
        room = len(sequence.blocks) * config.block_tokens - sequence.computed - 1 - drafts
        # The last of these steps may gain 1 + drafts tokens and must still leave one to generate.
        spare = min(room, sequence.remaining - 2 - drafts)
        fewest = min(fewest, (spare * 100 - sequence.phase) // rate + 1)
        if fewest <= 1:
            return 0
    if horizon_s == inf:
        return fewest
    slowest_s = speed.decode_s(len(running), contexts + fewest * len(running) * (1 + drafts))
    return min(fewest, int(horizon_s / slowest_s))


def decode_many(
    running: Sequences[Sequence], config: EngineConfig, speed: StepTime, steps: int, result: StepResult
) -> int:
    """Let every running sequence decode `steps` times; returns the tokens gained in all."""
    rate = config.tokens_per_step_hundredths
    contexts = 0
    growth = 0
    for sequence in running:
        contexts += sequence.total
        gained, sequence.phase = divmod(sequence.phase + rate * steps, 100)
        growth += gained
        sequence.emitted += gained
        sequence.total += gained
        sequence.computed += gained
        result.emitted[sequence.request.request_id] = gained
    mean_context = contexts + growth * (steps - 1) / (2 * steps)
    result.duration_s = steps * speed.decode_s(len(running), int(mean_context))
    result.steps = steps
    result.batch_tokens = growth // steps
    return growth
