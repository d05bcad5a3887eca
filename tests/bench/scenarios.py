"""What is asked of every proxy: the loads, their sizes and how long each is measured."""

import math
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["closed", "streams", "open", "idle"]
_TAIL_S = 0.3  # streams go on a little past the window, so that none ends inside it


@dataclass(frozen=True)
class Scenario:
    """One load. The measured window follows `warm_s`; what happens before and after it is checked, not measured."""

    name: str
    title: str
    kind: Kind
    connections: int
    warm_s: float
    window_s: float
    body: Literal["small", "agent"] = "small"
    interval_us: int = 0
    rate: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of each stream: enough to outlast the window; an idle stream stays at its first event."""
        if self.kind != "streams":
            return 2
        return math.ceil((self.warm_s + self.window_s + _TAIL_S) * 1e6 / self.interval_us)

    def shortened(self, factor: float) -> "Scenario":
        """The same load, measured for less time."""
        return replace(self, window_s=self.window_s * factor, warm_s=self.warm_s * (1 + factor) / 2)


# Windows are short and repetitions many: on a shared machine that brings both sides of a ratio closest together.
SCENARIOS = (
    # Memory comes first: later, every heap has grown already.
    Scenario("memory", "500 open, silent streams", "idle", 500, warm_s=0.5, window_s=0.5, interval_us=60_000_000),
    Scenario("requests", "requests, 32 connections", "closed", 32, warm_s=0.3, window_s=1.0),
    Scenario("requests_100k", "requests of 100 kB, 8 connections", "closed", 8, warm_s=0.3, window_s=1.0, body="agent"),
    Scenario("sse_64", "64 streams x 20 ms", "streams", 64, warm_s=0.6, window_s=1.2, interval_us=20_000),
    Scenario("sse_256", "256 streams x 50 ms", "streams", 256, warm_s=0.9, window_s=1.2, interval_us=50_000),
    Scenario("latency", "50 requests/s", "open", 4, warm_s=0.1, window_s=2.4, rate=50),
)
QUICK = ("requests", "sse_64", "latency")
NAMES = tuple(scenario.name for scenario in SCENARIOS)
