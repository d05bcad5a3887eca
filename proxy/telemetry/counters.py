"""Counters that cost a request a dictionary update: prometheus_client's own validate labels and take a lock each time.

Called by `metrics.py`. Written and read on the event loop only, like `histograms.py`; never drops a series.
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Counter(Collector):
    """One metric with all its label sets. Bounded by the label sets that the caller uses, which must be closed."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], float] = {}

    def __repr__(self) -> str:
        return f"<Counter {self._name}: {len(self._counts)} series>"

    def inc(self, *labels: str, by: float = 1.0) -> None:
        """Count so many more under these label values.

        Raises:
            ValueError: a label too few or too many, or a negative count.
        """
        counted = self._counts.get(labels)
        if counted is None:
            if len(labels) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {len(labels)}")
            counted = 0.0
        if by < 0:
            raise ValueError(f"{self._name} only ever grows")
        self._counts[labels] = counted + by

    def describe(self) -> Iterable[Metric]:
        """Name and kind, for the registry."""
        return [CounterMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[Metric]:
        """Everything counted so far."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        yield family
