"""How many turns at once make an engine slower than fewer would, learned from its reports. Pure.

Turns that decode share a step's fixed cost, so tokens a second rise with them, ever more slowly. They can fall again
where decoding is the limit and memory is not: speculative decoding multiplies a step's work by the drafts. Held by an
engine's room when `admission.knee_guard` is on, and asked by it before anybody starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

BUCKETS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""Running requests from which a bucket begins (admission brief 1.9); the last one has no end."""
ENOUGH_S: Final = 30.0
"""Seconds of samples before a bucket is believed."""
FORGOTTEN_S: Final = 600.0
"""A bucket that nobody has run in for so long is unknown again: this is what lifts a cap to look once more."""
WORSE_RATIO: Final = 0.07
MOST_PREFILL_RATIO: Final = 0.3
"""Of an interval: more of it spent on prompts says too little of how fast answers are written."""
_WEIGHT: Final = 0.1
_SPREAD_WEIGHT: Final = 0.02
"""The spread changes less than the speed, and is the worse for few samples."""
_ERRORS: Final = 5.0
"""Standard errors that a loss has to be worth besides. With a spread of 20 % from second to second, seven per cent
between two moving averages is one error only. Of 60 simulated hours on a plateau, three errors saw a knee in 39, four
in 3, five in none.
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast answers are written with so many running: a moving average over samples, and their variance."""

    tokens_per_s: float
    variance: float = 0.0
    samples: int = 1
    sampled_s: float = 0.0
    seen_at: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether it was looked at for long enough."""
        return self.sampled_s >= ENOUGH_S

    @property
    def error_variance(self) -> float:
        """The variance of the average itself."""
        return self.variance * max(1 / self.samples, _WEIGHT / (2 - _WEIGHT))


@dataclass(frozen=True, slots=True)
class Knee:
    """What is known of one engine.

    Attributes:
        speeds: by bucket.
        bucket: the one that the last report was in; None when nothing ran, or nobody knows.
        cap: the most turns at once, or None while no knee is known.
    """

    speeds: Mapping[int, Speed] = field(default_factory=dict)
    bucket: int | None = None
    cap: int | None = None


def after_report(
    knee: Knee,
    now: float,
    *,
    running: int | None,
    tokens_per_s: float | None,
    interval_s: float | None,
    prefill_ratio: float = 0.0,
) -> Knee:
    """What is known after one more report. An interval counts where it began and ended in the same bucket.

    Args:
        knee: what was known before.
        now: monotonic seconds of the report.
        running: requests that the engine runs, or None.
        tokens_per_s: generated since the last report; None when that is not known, a counter that went back included.
        interval_s: since the last report.
        prefill_ratio: share of the interval that went into prompts. The rest is what the tokens were written in: a
            step's time is that of its prompt tokens plus that of its decoders.
    """
    speeds = {bucket: speed for bucket, speed in knee.speeds.items() if now - speed.seen_at < FORGOTTEN_S}
    bucket = bucket_of(running)
    if (
        bucket is not None
        and bucket == knee.bucket
        and tokens_per_s is not None
        and interval_s
        and prefill_ratio <= MOST_PREFILL_RATIO
    ):
        speeds[bucket] = _with_sample(speeds.get(bucket), tokens_per_s / (1 - prefill_ratio), interval_s, now)
    return Knee(speeds, bucket, _cap(speeds, knee.cap))


def bucket_of(running: int | None) -> int | None:
    """The bucket that so many running requests are in; None for none of them, or unknown."""
    return max((bucket for bucket in BUCKETS if bucket <= running), default=None) if running is not None else None


def _with_sample(speed: Speed | None, tokens_per_s: float, interval_s: float, now: float) -> Speed:
    if speed is None:
        return Speed(tokens_per_s, sampled_s=interval_s, seen_at=now)
    samples = speed.samples + 1
    weight, spread_weight = max(_WEIGHT, 1 / samples), max(_SPREAD_WEIGHT, 1 / samples)  # plain means at first
    error = tokens_per_s - speed.tokens_per_s
    return Speed(
        tokens_per_s=speed.tokens_per_s + weight * error,
        variance=speed.variance + spread_weight * ((1 - weight) * error * error - speed.variance),
        samples=samples,
        sampled_s=speed.sampled_s + interval_s,
        seen_at=now,
    )


def _cap(speeds: Mapping[int, Speed], held: int | None) -> int | None:
    """One more than the fastest bucket when a larger one is clearly slower; the one that holds while any is slower."""
    known = {bucket: speed for bucket, speed in speeds.items() if speed.is_known}
    if not known:
        return None
    fastest = max(known, key=lambda bucket: (known[bucket].tokens_per_s, -bucket))
    if any(bucket > fastest and _is_worse(speed, known[fastest]) for bucket, speed in known.items()):
        return fastest + 1
    if held is None or held - 1 not in known:
        return None
    # Only a cap that makes it faster is kept: its own bucket goes on being measured, the larger ones stay as they were.
    larger = [speed.tokens_per_s for bucket, speed in known.items() if bucket >= held]
    return held if larger and max(larger) < known[held - 1].tokens_per_s else None


def _is_worse(larger: Speed, smaller: Speed) -> bool:
    loss = smaller.tokens_per_s - larger.tokens_per_s
    noise = _ERRORS * sqrt(smaller.error_variance + larger.error_variance)
    return loss >= max(WORSE_RATIO * smaller.tokens_per_s, noise)
