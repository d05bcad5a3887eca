"""Pauses between token events, counted per bucket inside one stream and merged into a histogram at its end.

Marked a batch of token events at a time instead of a metric call for each; the exported histogram has the same bounds.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import sub

GAP_BOUNDS_S: tuple[float, ...] = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds in seconds: 5 ms is a small model on a large card, 30 s a decode starved by other prompts' prefill."""


class GapCounter:
    """Counts of pauses per bucket; the last bucket is everything above the highest bound. Bounded by its buckets."""

    __slots__ = ("_last_at", "counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(GAP_BOUNDS_S) + 1)
        self.sum_s = 0.0
        self._last_at: float | None = None

    def mark(self, times: Sequence[float]) -> None:
        """Token events passed at these times (monotonic seconds, rising; at least one)."""
        last_at, self._last_at = self._last_at, times[-1]
        if last_at is None:
            last_at = times[0]
            times = times[1:]
        self.sum_s += self._last_at - last_at
        # Sorted, a whole batch is counted with a look for each bound below its longest pause, not one for each pause.
        gaps_s = sorted(map(sub, times, (last_at, *times)))
        counts, counted = self.counts, 0
        for bucket, bound_s in enumerate(GAP_BOUNDS_S):
            if counted == len(gaps_s):
                return
            within = bisect_right(gaps_s, bound_s, counted)
            counts[bucket] += within - counted
            counted = within
        counts[-1] += len(gaps_s) - counted
