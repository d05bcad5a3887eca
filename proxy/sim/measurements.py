"""What was measured on real machines, as far as the simulation must reproduce it.

Read by `compare` and its test. Figures as published; nothing here is derived.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredBurst:
    """`requests` sent at once: wall time, mean latency, aggregate output tokens per second."""

    requests: int
    wall_s: float
    latency_s: float
    output_tokens_per_s: float


CARD_32GB: dict[int, tuple[MeasuredBurst, ...]] = {
    0: (
        MeasuredBurst(1, 7.00, 7.00, 36.6),
        MeasuredBurst(4, 7.53, 7.52, 136.0),
        MeasuredBurst(8, 7.82, 7.81, 262.0),
        MeasuredBurst(16, 8.94, 8.94, 457.9),
        MeasuredBurst(24, 10.41, 10.40, 590.2),
        MeasuredBurst(32, 11.63, 11.62, 704.5),
        MeasuredBurst(64, 23.91, 17.08, 685.4),
        MeasuredBurst(128, 41.63, 27.23, 787.1),
    ),
    1: (
        MeasuredBurst(1, 4.74, 4.74, 54.0),
        MeasuredBurst(4, 5.09, 5.01, 201.1),
        MeasuredBurst(8, 5.51, 5.41, 371.8),
        MeasuredBurst(16, 6.67, 6.58, 613.7),
        MeasuredBurst(24, 8.17, 7.94, 752.5),
        MeasuredBurst(32, 13.44, 9.40, 609.6),
    ),
    2: (
        MeasuredBurst(1, 3.95, 3.95, 64.9),
        MeasuredBurst(4, 4.45, 4.32, 230.2),
        MeasuredBurst(8, 5.03, 4.92, 406.9),
        MeasuredBurst(16, 6.37, 6.17, 642.9),
        MeasuredBurst(24, 11.92, 8.53, 515.3),
        MeasuredBurst(32, 13.17, 9.86, 621.8),
    ),
    3: (
        MeasuredBurst(1, 3.66, 3.66, 70.0),
        MeasuredBurst(4, 4.00, 3.87, 255.7),
        MeasuredBurst(8, 4.90, 4.74, 418.1),
        MeasuredBurst(16, 10.07, 6.82, 406.6),
        MeasuredBurst(24, 11.60, 8.57, 529.6),
        MeasuredBurst(32, 16.32, 10.36, 502.0),
    ),
}
"""Users' machine A by MTP depth. Wall time times tokens per second is 256 tokens a request at every point."""

CARD_32GB_QUEUE: dict[int, tuple[int, int]] = {0: (32, 64), 1: (24, 32), 2: (16, 24), 3: (8, 16)}
"""By MTP depth: the largest burst whose wall time is its mean latency, and the next, where requests queued."""


@dataclass(frozen=True, slots=True)
class MeasuredLoop:
    """`clients` that each send the next request when the last is answered: output tokens per second, first token."""

    clients: int
    output_tokens_per_s: float
    first_token_p50_s: float


H200_8B_PLAIN: tuple[MeasuredLoop, ...] = (
    MeasuredLoop(1, 187, 0.05),
    MeasuredLoop(4, 718, 0.07),
    MeasuredLoop(8, 1333, 0.12),
    MeasuredLoop(16, 2482, 0.22),
    MeasuredLoop(32, 4085, 0.29),
    MeasuredLoop(64, 6179, 0.50),
    MeasuredLoop(128, 8112, 0.95),
)
"""GPU baseline: 512 tokens in, 256 out, no shared prompt, three requests a client and at least six."""


@dataclass(frozen=True, slots=True)
class MeasuredAgents:
    """Coding agents on one engine: output tokens per second, first token, and the cached part of their own context."""

    agents: int
    output_tokens_per_s: float
    first_token_p50_s: float
    own_hit_ratio: float


H200_8B_AGENTS: tuple[MeasuredAgents, ...] = (
    MeasuredAgents(4, 260, 0.16, 0.83),
    MeasuredAgents(6, 359, 0.17, 0.87),
    MeasuredAgents(8, 417, 0.16, 0.85),
    MeasuredAgents(12, 299, 1.56, 0.04),
    MeasuredAgents(16, 317, 5.64, 0.00),
    MeasuredAgents(24, 348, 12.3, 0.00),
    MeasuredAgents(32, 322, 21.5, 0.00),
)
"""GPU baseline, section 3, no admission control. For 32 agents the longer window is taken, which counts open turns."""
