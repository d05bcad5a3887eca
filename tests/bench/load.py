"""The load generator: one load against one port, checked to the last byte, its figures as one JSON line on stdout.

`python -m tests.bench.load` reads its order as JSON on stdin; it also reads the proxy's CPU, so that CPU and counts
have the same edges.
"""

import asyncio
import gc
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import orjson
import uvloop

from tests.bench.bodies import request
from tests.bench.clients import Client, StreamClient, Tally
from tests.bench.processes import cpu_s, rss_bytes
from tests.bench.scenarios import Scenario

_OPEN_S = 8.0  # to open all connections
_SETTLE_S = 8.0  # for the last answers after the window
_SPIN_S = 0.0025  # the loop's timers count whole milliseconds; the last bit before a scheduled request is spun


@dataclass
class Figures:
    """What one load showed. `units` are answers, or events of streams, inside the window."""

    units: int = 0
    answers: int = 0
    window_s: float = 0.0
    cpu_s: float | None = None
    rss_before: int = 0
    rss_after: int = 0
    units_per_read: float = 0.0
    p50_s: float | None = None
    p99_s: float | None = None
    floor_p50_s: float | None = None
    floor_p99_s: float | None = None
    faults: dict[str, int] = field(default_factory=dict)


class Window:
    """CPU, time and counts between two moments."""

    def __init__(self, tally: Tally, pids: Sequence[int]) -> None:
        self._tally = tally
        self._pids = pids
        self._begin = self._now()

    def _now(self) -> tuple[float, float, int, int, int]:
        tally = self._tally
        return cpu_s(self._pids), time.perf_counter(), tally.answers, tally.events, tally.reads

    def close(self, figures: Figures) -> None:
        """Write the differences down."""
        cpu, seconds, answers, events, reads = (b - a for a, b in zip(self._begin, self._now(), strict=True))
        figures.cpu_s = cpu if self._pids else None
        figures.window_s = seconds
        figures.units = int(events or answers)
        figures.units_per_read = figures.units / max(1, reads)


class Load:
    """One load against one port; `floor_port` is the engine's own."""

    def __init__(self, scenario: Scenario, port: int, floor_port: int, pids: Sequence[int]) -> None:
        self.scenario = scenario
        self.port = port
        self.floor_port = floor_port
        self.pids = pids
        self.tally = Tally()
        self.figures = Figures()
        self._clients: list[Client] = []

    async def run(self) -> Figures:
        """Run it and return what it showed."""
        kinds = {"closed": self._closed, "streams": self._streams, "open": self._open, "idle": self._idle}
        try:
            await kinds[self.scenario.kind]()
        finally:
            for client in self._clients:
                client.close()
        self.figures.answers = self.tally.answers
        if not self.tally.answers and not self.tally.events:
            self.tally.fault("not a single answer")
        self.figures.faults = dict(self.tally.faults)
        return self.figures

    async def connect(self, client: Client, port: int) -> Client:
        """Open a connection that is closed with the load."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_OPEN_S):
            await loop.create_connection(lambda: client, "127.0.0.1", port)
        self._clients.append(client)
        return client

    def _request(self, number: int) -> bytes:
        return request(self.scenario, number, self.port)

    async def _measure(self) -> None:
        await asyncio.sleep(self.scenario.warm_s)
        window = Window(self.tally, self.pids)
        await asyncio.sleep(self.scenario.window_s)
        window.close(self.figures)

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(_SETTLE_S):
                await self.tally.settled.wait()
        except TimeoutError:
            self.tally.faults["answers that never ended"] += self.tally.busy

    async def _closed(self) -> None:
        """Every connection asks again as soon as it is answered."""
        is_over = False

        def again(client: Client) -> None:
            if not is_over:
                client.send()

        for number in range(self.scenario.connections):
            client = Client(self.tally, self._request(number), again)
            (await self.connect(client, self.port)).send()
        await self._measure()
        is_over = True
        await self._settle()

    async def _streams(self) -> None:
        """All streams open over the first half of the warm-up and run past the window to their end."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure())
            tasks.create_task(self._open_streams(self.scenario.warm_s / 2))
        await self._settle()

    async def _open_streams(self, over_s: float) -> None:
        for number in range(self.scenario.connections):
            client = StreamClient(self.tally, self._request(number), self.scenario.tokens)
            (await self.connect(client, self.port)).send()
            await asyncio.sleep(over_s / self.scenario.connections)

    async def _open(self) -> None:
        """Requests at fixed times, whatever became of those before, by turns through the proxy and past it.

        Both lanes meet the same neighbours, so what one adds to the other is the proxy's.
        """
        lanes = [Lane(self, self.port), Lane(self, self.floor_port)]
        for lane in lanes:
            for number in range(self.scenario.connections):  # each connection has been used before it counts
                (await lane.open(number)).send()
                await self._settle()
            lane.latencies_s.clear()
        await asyncio.sleep(self.scenario.warm_s)
        window = Window(self.tally, self.pids)
        begin_s = time.perf_counter() + 0.02
        requests = round(self.scenario.window_s * self.scenario.rate)
        for number in range(2 * requests):
            due_s = begin_s + number / self.scenario.rate / 2
            await asyncio.sleep(max(0.0, due_s - time.perf_counter() - _SPIN_S))
            while time.perf_counter() < due_s:
                pass
            await lanes[number % 2].send(number, due_s)
        await self._settle()
        window.close(self.figures)
        self.figures.units = requests  # of the lane whose CPU was measured
        self.figures.p50_s, self.figures.p99_s = lanes[0].percentiles()
        self.figures.floor_p50_s, self.figures.floor_p99_s = lanes[1].percentiles()

    async def _idle(self) -> None:
        """Streams that sent their first event and then nothing; they are left, not ended."""
        self.figures.rss_before = rss_bytes(self.pids)
        await self._open_streams(self.scenario.warm_s)
        for _ in range(round(_SETTLE_S / 0.1)):
            if self.tally.events >= self.scenario.connections:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(self.scenario.window_s)
        self.figures.rss_after = rss_bytes(self.pids)
        self.figures.units = self.tally.events
        if self.tally.events != self.scenario.connections:
            self.tally.fault(f"{self.tally.events} of {self.scenario.connections} streams sent their first event")


class Lane:
    """The connections to one port of an open load, and how long each answer took from its scheduled time."""

    def __init__(self, load: Load, port: int) -> None:
        self.latencies_s: list[float] = []
        self._load = load
        self._port = port
        self._idle: deque[Client] = deque()

    async def open(self, number: int) -> Client:
        """One more connection."""
        content = request(self._load.scenario, number, self._port)
        return await self._load.connect(Client(self._load.tally, content, self._answered), self._port)

    def _answered(self, client: Client) -> None:
        self.latencies_s.append(time.perf_counter() - client.scheduled_s)
        self._idle.append(client)

    async def send(self, number: int, due_s: float) -> None:
        """Ask on the connection that rested longest, or on a new one."""
        client = self._idle.popleft() if self._idle else await self.open(number)
        client.scheduled_s = due_s
        client.send()

    def percentiles(self) -> tuple[float | None, float | None]:
        """p50 and p99."""
        if len(self.latencies_s) < 2:
            return None, None
        cuts = statistics.quantiles(self.latencies_s, n=100, method="inclusive")
        return cuts[49], cuts[98]


def main() -> None:
    """Run one order."""
    order = orjson.loads(sys.stdin.buffer.read())
    gc.disable()  # it lives for seconds, and a collection would look like the proxy's latency
    load = Load(Scenario(**order["scenario"]), order["port"], order["floor_port"], order["pids"])
    sys.stdout.buffer.write(orjson.dumps(asdict(uvloop.run(load.run()))))


if __name__ == "__main__":
    main()
