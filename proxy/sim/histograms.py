"""Histograms in the shape that a metrics page needs. Bounded by their buckets; nothing is kept of single values."""

from bisect import bisect_left


class Histogram:
    """Counts of observed values per bucket."""

    __slots__ = ("_counts", "bounds", "count", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`value` was seen `times` times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """Each upper bound as a label, with the values at or below it."""
        total = 0
        rows: list[tuple[str, int]] = []
        for bound, count in zip(self.bounds, self._counts, strict=False):
            total += count
            rows.append((str(float(bound)), total))
        rows.append(("+Inf", self.count))
        return rows
