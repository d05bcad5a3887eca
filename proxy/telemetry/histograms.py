"""Histograms that cost a request well under a microsecond, and that can take counts made elsewhere.

Called by `metrics.py`. Written and read on the event loop only, so it needs no lock; it never drops a series.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class _Series:
    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total = 0.0


class Histogram(Collector):
    """One metric with all its label sets; prometheus_client's own walks its buckets and takes a lock each time.

    Bounded by the label sets that the caller uses, which must be closed.

    Args:
        bounds: inclusive upper bounds, rising, in the metric's unit; the bucket above the last is added.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._series: dict[tuple[str, ...], _Series] = {}
        if not labels:
            self._series_of(())  # so that it is exported as zero before the first observation

    def __repr__(self) -> str:
        return f"<Histogram {self._name}: {len(self._series)} series>"

    def observe(self, value: float, *labels: str) -> None:
        """Count one value, in the metric's unit, under these label values."""
        series = self._series.get(labels) or self._series_of(labels)
        series.counts[bisect_left(self._bounds, value)] += 1
        series.total += value

    def merge(self, counts: Sequence[int], total: float, *labels: str) -> None:
        """Add counts per bucket, and the sum of the values behind them.

        Raises:
            ValueError: the counts were made over other buckets.
        """
        series = self._series.get(labels) or self._series_of(labels)
        series.counts = [mine + more for mine, more in zip(series.counts, counts, strict=True)]
        series.total += total

    def describe(self) -> Iterable[Metric]:
        """Name and kind, for the registry."""
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        """Everything counted so far."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, series in self._series.items():
            buckets, running = [], 0
            for bound, count in zip([*map(str, self._bounds), "+Inf"], series.counts, strict=True):
                running += count
                buckets.append((bound, float(running)))
            family.add_metric(labels, buckets, series.total)
        yield family

    def _series_of(self, labels: tuple[str, ...]) -> _Series:
        if len(labels) != len(self._labels):
            raise ValueError(f"{self._name} has the labels {self._labels}, not {len(labels)}")
        return self._series.setdefault(labels, _Series(len(self._bounds) + 1))
