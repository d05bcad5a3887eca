"""From samples to medians, ratios and verdicts, as text for people and as JSON.

Ratios are made inside each repetition, where both sides met the same neighbours, and only then summed up.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.load import Figures
from tests.bench.run import NGINX, PLAIN, Sample
from tests.bench.scenarios import SCENARIOS

LABELS = {PLAIN: "plain aiohttp"}
_PACE = 0.9
_SCENARIOS = {scenario.name: scenario for scenario in SCENARIOS}


def _cpu_us(figures: Figures) -> float | None:
    return None if figures.cpu_s is None or not figures.units else figures.cpu_s / figures.units * 1e6


def _ms(seconds: float | None, floor_s: float | None = 0.0) -> float | None:
    return None if seconds is None or floor_s is None else (seconds - floor_s) * 1e3


def _stream_kb(figures: Figures) -> float | None:
    return (figures.rss_after - figures.rss_before) / 1024 / figures.units if figures.rss_before else None


@dataclass(frozen=True)
class Metric:
    """One row: a figure of one scenario, and what the load itself takes without a proxy, where that is known."""

    key: str
    title: str
    unit: str
    scenario: str
    figure: Callable[[Figures], float | None]
    floor: Callable[[Figures], float | None] = lambda _: None


METRICS = (
    Metric("cpu_per_request", "CPU per request", "us", "requests", _cpu_us),
    Metric("cpu_per_request_100k", "CPU per request of 100 kB", "us", "requests_100k", _cpu_us),
    Metric("cpu_per_chunk_64", "CPU per chunk, 64 x 20 ms", "us", "sse_64", _cpu_us),
    Metric("cpu_per_chunk_256", "CPU per chunk, 256 x 50 ms", "us", "sse_256", _cpu_us),
    Metric("cpu_per_request_50rps", "CPU per request at 50/s", "us", "latency", _cpu_us),
    Metric(
        "added_p50",
        "added latency at 50/s, p50",
        "ms",
        "latency",
        figure=lambda figures: _ms(figures.p50_s, figures.floor_p50_s),
        floor=lambda figures: _ms(figures.floor_p50_s),
    ),
    Metric(
        "added_p99",
        "added latency at 50/s, p99",
        "ms",
        "latency",
        figure=lambda figures: _ms(figures.p99_s, figures.floor_p99_s),
        floor=lambda figures: _ms(figures.floor_p99_s),
    ),
    Metric("rss_per_stream", "memory per silent stream", "kB", "memory", _stream_kb),
)


@dataclass(frozen=True)
class Target:
    """A ratio that must not be exceeded."""

    metric: str
    peer: str
    limit: float


TARGETS = (
    Target("cpu_per_request", PLAIN, 1.0),
    Target("cpu_per_chunk_64", NGINX, 1.3),
    Target("cpu_per_chunk_256", NGINX, 1.3),
)


@dataclass(frozen=True)
class Spread:
    """A median and what it lies between."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """The spread of some values, if there are any."""
        return cls(statistics.median(values), min(values), max(values)) if values else None

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f})"


@dataclass(frozen=True)
class Verdict:
    """What became of a target; `ratio` is None where it could not be judged."""

    proxy: str
    target: Target
    ratio: Spread | None

    @property
    def is_missed(self) -> bool:
        """Only a measured ratio can miss."""
        return self.ratio is not None and self.ratio.median > self.target.limit

    def __str__(self) -> str:
        title = next(metric.title for metric in METRICS if metric.key == self.target.metric)
        peer = LABELS.get(self.target.peer, self.target.peer)
        said = "not judged" if self.ratio is None else f"{'MISS' if self.is_missed else 'pass'}  {self.ratio}"
        return f"target  {self.proxy}: {title} <= {self.target.limit:.1f} x {peer}: {said}"


class Summary:
    """Everything that can be said about the samples of one run."""

    def __init__(self, samples: Sequence[Sample], candidates: Sequence[str]) -> None:
        self.samples = samples
        self.proxies = list(dict.fromkeys(sample.proxy for sample in samples))
        self.candidates = candidates

    def values(self, metric: Metric, proxy: str) -> dict[int, float]:
        """The metric by repetition."""
        of_proxy = [s for s in self.samples if (s.scenario, s.proxy) == (metric.scenario, proxy)]
        measured = {sample.repetition: metric.figure(sample.figures) for sample in of_proxy}
        return {repetition: value for repetition, value in measured.items() if value is not None}

    def _floor(self, metric: Metric) -> str:
        floors = [metric.floor(sample.figures) for sample in self.samples if sample.scenario == metric.scenario]
        spread = Spread.of([floor for floor in floors if floor is not None])
        return "-" if spread is None else f"{spread.median:.2f}"

    def ratio(self, metric: Metric, proxy: str, peer: str) -> Spread | None:
        """The proxy's figure over the peer's, by repetition; nothing where the peer's is lost in the noise."""
        peers = {repetition: value for repetition, value in self.values(metric, peer).items() if value > 0}
        return Spread.of([value / peers[r] for r, value in self.values(metric, proxy).items() if r in peers])

    def verdicts(self) -> list[Verdict]:
        """Each target for each candidate."""
        metrics = {metric.key: metric for metric in METRICS}
        return [Verdict(c, t, self.ratio(metrics[t.metric], c, t.peer)) for c in self.candidates for t in TARGETS]

    def notes(self) -> list[str]:
        """What makes a figure doubtful."""
        said = []
        for sample in self.samples:
            scenario, figures = _SCENARIOS[sample.scenario], sample.figures
            if scenario.kind == "streams":
                pace = figures.units / figures.window_s / (scenario.connections * 1e6 / scenario.interval_us)
                if pace < _PACE:
                    where = f"{sample.proxy}, {scenario.title}, repetition {sample.repetition + 1}"
                    said.append(
                        f"{where}: {pace:.0%} of the pace (a busy machine; late chunks travel together and cost less)"
                    )
        return said

    def text(self) -> str:
        """The two tables."""
        pairs = [(p, peer) for p in (*self.candidates, PLAIN) for peer in (PLAIN, NGINX)]
        pairs = [(p, peer) for p, peer in pairs if p != peer and p in self.proxies and peer in self.proxies]
        rows = [["ratio, median (least-most)", *(f"{p} / {peer}" for p, peer in pairs)]]
        rows += [[m.title, *(str(self.ratio(m, p, peer) or "-") for p, peer in pairs)] for m in METRICS]
        figures = [["figure, median", *(LABELS.get(proxy, proxy) for proxy in self.proxies), "direct"]]
        for metric in METRICS:
            spreads = [Spread.of(list(self.values(metric, proxy).values())) for proxy in self.proxies]
            cells = ["-" if spread is None else f"{spread.median:.2f}" for spread in spreads]
            figures.append([f"{metric.title}, {metric.unit}", *cells, self._floor(metric)])
        busy = [self._busy(proxy) for proxy in self.proxies]
        figures.append(["busy in 'requests', % of its core", *busy, "-"])
        return "\n\n".join(_table([row for row in table if set(row[1:]) != {"-"}]) for table in (rows, figures))

    def _busy(self, proxy: str) -> str:
        shares = [
            sample.figures.cpu_s / sample.figures.window_s * 100
            for sample in self.samples
            if (sample.scenario, sample.proxy) == ("requests", proxy) and sample.figures.cpu_s is not None
        ]
        return f"{statistics.median(shares):.0f}" if shares else "-"

    def json(self) -> dict[str, Any]:
        """The same for machines, with every sample."""
        ratios: list[Mapping[str, Any]] = [
            {"metric": metric.key, "proxy": proxy, "peer": peer, **asdict(spread)}
            for metric in METRICS
            for proxy in self.proxies
            for peer in (PLAIN, NGINX)
            if proxy != peer and (spread := self.ratio(metric, proxy, peer)) is not None
        ]
        verdicts = [{**asdict(v), "is_missed": None if v.ratio is None else v.is_missed} for v in self.verdicts()]
        return {"ratios": ratios, "targets": verdicts, "samples": [asdict(sample) for sample in self.samples]}


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]))
    return "\n".join(lines)
