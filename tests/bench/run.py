"""One interleaved run: starts the engine and every proxy, checks each, and puts every load through all of them in turn.

`Run.samples` is what `report` reads; a proxy that drops, cuts or changes anything is written into `Run.failures`.
"""

import dataclasses
import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import orjson

from tests.bench import nginx
from tests.bench.bodies import body
from tests.bench.fake_backend import ANSWER
from tests.bench.load import Figures
from tests.bench.processes import CAN_MEASURE_CPU, Processes, cores, cpu_s, free_port, tree
from tests.bench.scenarios import SCENARIOS, Scenario

NGINX, PLAIN, TIDEGATE = "nginx", "plain", "tidegate"
_START_S = 20.0
_LOAD_S = 30.0  # beside warm-up and window: to start, open and settle
_QUIET_S = 3.0
_CHECK_STREAM = Scenario("check", "", "streams", connections=1, warm_s=0.1, window_s=0.1, interval_us=20_000)
_pause = threading.Event().wait


@dataclasses.dataclass(frozen=True)
class Proxy:
    """One of those that are compared; `command` gets the port, the backend's port and a directory for its files."""

    name: str
    command: Callable[[int, int, Path], list[str]]


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one load through one proxy showed in one repetition."""

    proxy: str
    scenario: str
    repetition: int
    figures: Figures


def from_command(name: str, template: Sequence[str]) -> Proxy:
    """A proxy started by a command in which {port} and {backend} stand for what they say."""

    def command(port: int, backend_port: int, _: Path) -> list[str]:
        backend = f"http://127.0.0.1:{backend_port}"
        return [word.replace("{port}", str(port)).replace("{backend}", backend) for word in template]

    return Proxy(name, command)


def known(nginx_binary: str | None) -> list[Proxy]:
    """What is compared unless the command line says otherwise."""
    python = [sys.executable, "-m"]
    address = ["--backend", "{backend}", "--port", "{port}"]
    proxies = []
    if nginx_binary is not None:
        proxies.append(
            Proxy(NGINX, lambda port, backend, at: nginx.command(nginx_binary, at / "prefix", port, backend))
        )
    proxies.append(from_command(PLAIN, [*python, "tests.bench.plain_proxy", *address]))
    proxies.append(from_command(TIDEGATE, [*python, "proxy", "serve", *address]))
    return proxies


def _post(port: int, scenario: Scenario) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-bench"}
        connection.request("POST", "/v1/chat/completions", body(scenario, 0), headers)
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as exc:
        raise OSError(repr(exc)) from exc
    finally:
        connection.close()


class Run:
    """One interleaved run; `progress` hears what comes next and the share that is done."""

    def __init__(self, scenarios: Sequence[Scenario], repetitions: int, progress: Callable[[str, float], None]) -> None:
        self.samples: list[Sample] = []
        self.failures: list[str] = []
        self._scenarios = scenarios
        self._repetitions = repetitions
        self._progress = progress
        self._backend_port = 0
        self._ports: dict[str, int] = {}
        self._pids: dict[str, list[int]] = {}
        self._cores: tuple[int, int] | tuple[None, None] = cores() or (None, None)

    def run(self, proxies: Iterable[Proxy]) -> None:
        """Start, measure, stop."""
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, Processes(Path(name)) as processes:
            if self._start_all(processes, proxies, Path(name)):
                self._measure_all(processes)

    def _start_all(self, processes: Processes, proxies: Iterable[Proxy], at: Path) -> bool:
        self._backend_port = backend_port = free_port()
        command = [sys.executable, "-m", "tests.bench.fake_backend", str(backend_port)]
        backend = processes.start("backend", command, self._cores[0])
        if not self._is_right("backend", backend_port, backend, processes):
            return False
        whole_stream = _post(backend_port, _CHECK_STREAM)[1]
        for proxy in proxies:
            self._progress(f"starting {proxy.name}", 0.0)
            port = free_port()
            files = at / proxy.name
            files.mkdir()
            process = processes.start(proxy.name, proxy.command(port, backend_port, files), self._cores[1])
            if not self._is_right(proxy.name, port, process, processes):
                continue
            if _post(port, _CHECK_STREAM) != (200, whole_stream):
                self.failures.append(f"{proxy.name}: a stream does not come through byte for byte")
                continue
            self._ports[proxy.name] = port
            self._pids[proxy.name] = tree(process.pid) if CAN_MEASURE_CPU else []
        return bool(self._ports)

    def _is_right(self, name: str, port: int, process: subprocess.Popen[bytes], processes: Processes) -> bool:
        """Wait for the first right answer; a process that ends, is silent or answers wrongly is a failure."""
        said = "no answer"
        end_s = time.monotonic() + _START_S
        while time.monotonic() < end_s and process.poll() is None:
            try:
                status, answer = _post(port, SCENARIOS[1])
            except OSError as exc:
                said = str(exc)
            else:
                if (status, answer) == (200, ANSWER):
                    return True
                said = f"status {status}: {answer[:200].decode(errors='replace')}"
            _pause(0.1)
        if process.poll() is not None:
            said = f"ended with status {process.returncode}"
        self.failures.append(f"{name} did not start ({said})\n{processes.log_tail(name)}".rstrip())
        return False

    def _measure_all(self, processes: Processes) -> None:
        names = list(self._ports)
        plan = [
            (repetition, scenario, name)
            for repetition in range(self._repetitions)
            for scenario in self._scenarios
            for name in names[repetition % len(names) :] + names[: repetition % len(names)]
            if scenario.kind != "idle" or repetition == 0
        ]
        for done, (repetition, scenario, name) in enumerate(plan):
            self._progress(f"{repetition + 1}/{self._repetitions} {scenario.title}: {name}", done / len(plan))
            self._measure(processes, repetition, scenario, name)

    def _measure(self, processes: Processes, repetition: int, scenario: Scenario, name: str) -> None:
        pids = self._pids[name]
        ports = {"port": self._ports[name], "floor_port": self._backend_port}
        order = {"scenario": dataclasses.asdict(scenario), "pids": pids, **ports}
        limit_s = scenario.warm_s + scenario.window_s + _LOAD_S
        try:
            said = processes.ask(
                [sys.executable, "-m", "tests.bench.load"], self._cores[0], orjson.dumps(order), limit_s
            )
            figures = Figures(**orjson.loads(said))
        except OSError as exc:
            self.failures.append(f"{name}, {scenario.name}: the load failed: {exc}")
            return
        if figures.faults:
            what = "; ".join(f"{count} x {reason}" for reason, count in figures.faults.items())
            self.failures.append(f"{name}, {scenario.name}, repetition {repetition + 1}: {what}")
        else:
            self.samples.append(Sample(name, scenario.name, repetition, figures))
        self._wait_until_quiet(pids)

    def _wait_until_quiet(self, pids: Sequence[int]) -> None:
        """What one load left behind must not be paid in the next proxy's window."""
        end_s = time.monotonic() + _QUIET_S
        before = cpu_s(pids)
        while time.monotonic() < end_s:
            _pause(0.1)
            now = cpu_s(pids)
            if now - before < 0.005:
                return
            before = now


def machine() -> dict[str, object]:
    """What a reader of the figures has to know about where they come from."""
    binary = nginx.find()
    return {
        "platform": sys.platform,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "is_pinned": cores() is not None,
        "load1": round(os.getloadavg()[0], 2),
        "nginx": nginx.version(binary) if binary else None,
    }
