"""Pauses between token events, counted per bucket inside one stream and merged into a histogram at its end.

Marked a batch of token events at a time instead of a metric call for each; the exported histogram has the same bounds.
"""

from bisect import bisect_left
from collections.abc import Iterable

GAP_BOUNDS_S: tuple[float, ...] = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds in seconds: 5 ms is a small model on a large card, 30 s a decode starved by other prompts' prefill."""


class GapCounter:
    """Counts of pauses per bucket; the last bucket is everything above the highest bound. Bounded by its buckets."""

    __slots__ = ("_last_at", "counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(GAP_BOUNDS_S) + 1)
        self.sum_s = 0.0
        self._last_at: float | None = None

    def mark(self, times: Iterable[float]) -> None:
        """Token events passed at these times (monotonic seconds, rising)."""
        counts, last_at = self.counts, self._last_at
        for now in times:
            if last_at is not None:
                gap_s = now - last_at
                counts[bisect_left(GAP_BOUNDS_S, gap_s)] += 1
                self.sum_s += gap_s
            last_at = now
        self._last_at = last_at
