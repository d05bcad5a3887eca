"""Starts the programs that a run needs, each in a process group of its own, and ends exactly those."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.conformance.wire import eventually, is_answering

_PORTS: Final = (15_000, 32_000)
ROOT: Final = Path(__file__).resolve().parents[2]
_SOFTLY_S: Final = 10.0
_TAIL_LINES: Final = 15
_LINE_CHARACTERS: Final = 240
_START_S: Final = 30.0


def say(text: str) -> None:
    """Progress for whoever waits; on stderr, so that output stays output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def free_port() -> int:
    """A loopback port that nobody listens on right now.

    It is below those that the kernel gives out by itself: an engine binds it some ten seconds later, and until then any
    connection or test server of the machine might be given it.
    """
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def clean_up_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that blocks are left in order and nothing stays behind."""
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))


def end_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End a process that was started in its own session, and all that it started: softly, then for certain."""
    for signum, wait_s in ((signal.SIGINT, _SOFTLY_S), (signal.SIGTERM, _SOFTLY_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
        break
    with suppress(ProcessLookupError):  # what it left behind
        os.killpg(process.pid, signal.SIGKILL)


def _inherited_environment() -> dict[str, str]:
    """Our own environment, less what would configure a proxy: a run must not depend on who starts it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


class NotStartedError(Exception):
    """A program ended, or took too long, before it was ready."""


@dataclass(frozen=True)
class Served:
    """A running program that answers HTTP."""

    url: str
    log: Path


@dataclass
class Programs:
    """The programs of one run. Leaving the block ends them, last started first; a fault shows their logs."""

    logs: Path
    _running: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for _, process in reversed(self._running):
            end_group(process)

    def log(self, name: str) -> Path:
        """Where a program's output goes."""
        return self.logs / f"{name}.log"

    def latest(self, name: str) -> subprocess.Popen[bytes]:
        """The program that was last started under a name."""
        return next(process for started, process in reversed(self._running) if started == name)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        is_ready: Callable[[], bool],
        within_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program and wait until it is ready.

        Raises:
            NotStartedError: it ended before that, or the time was over.
        """
        say(f"starting {name} ...")
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**_inherited_environment(), **(environment or {})},
            )
        self._running.append((name, process))
        eventually(lambda: process.poll() is not None or is_ready(), within_s=within_s, every_s=0.2)
        if process.poll() is not None:
            raise NotStartedError(f"{name} ended with exit status {process.returncode}")
        if not is_ready():
            raise NotStartedError(f"{name} was not ready within {within_s:.0f} s")
        return process

    def show_logs(self) -> None:
        """Print the end of every log."""
        for name, _ in self._running:
            lines = self.log(name).read_text(errors="replace").splitlines()
            say(f"--- {name}, last {min(len(lines), _TAIL_LINES)} of {len(lines)} lines")
            for line in lines[-_TAIL_LINES:]:
                say(f"    {line[:_LINE_CHARACTERS]}")


def start_proxy(programs: Programs, backend_url: str) -> Served:
    """Put `tidegate serve` in front of one backend."""
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", programs.log("tidegate"))
    programs.start(
        "tidegate",
        [sys.executable, "-m", "proxy", "serve", "--backend", backend_url, "--port", str(port), "--log-format", "json"],
        is_ready=lambda: is_answering(served.url, "/readyz"),
        within_s=_START_S,
        environment={"PYTHONUNBUFFERED": "1"},
    )
    return served


def start_simulated(programs: Programs, model: str, *, speed: int) -> Served:
    """Serve a simulated engine."""
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", programs.log("simulated"))
    command = [sys.executable, "-m", "proxy.sim", "serve"]
    programs.start(
        "simulated",
        [*command, "--port", str(port), "--speed", str(speed), "--model", model],
        is_ready=lambda: is_answering(served.url, "/health"),
        within_s=_START_S,
    )
    return served
