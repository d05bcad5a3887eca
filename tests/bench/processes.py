"""Starts and stops the processes of one run and reads what they cost from /proc (Linux only).

Only process groups that were started here are ever signalled.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

CAN_MEASURE_CPU = sys.platform == "linux"
ROOT = Path(__file__).resolve().parents[2]
_STOP_S = 3.0


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cores() -> tuple[int, int] | None:
    """The core for load and backend and the core for the proxies, or None where there is one core or no pinning."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[-1]) if len(usable) > 1 else None


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    if not CAN_MEASURE_CPU:
        return [pid]
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds of these processes: nanoseconds of every thread where the kernel keeps them, else clock ticks."""
    total = 0.0
    for pid in pids:
        try:
            spent = [int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
            if spent:
                total += sum(spent) / 1e9
            else:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it ended; the sample that needed it fails by itself
            continue
    return total


def rss_bytes(pids: Sequence[int]) -> int:
    """Resident memory of these processes together."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def _launched(command: Sequence[str], core: int | None) -> list[str]:
    launcher = [sys.executable, "-m", "tests.bench.launch", str(os.getpid()), "-" if core is None else str(core)]
    return [*launcher, *command]


class Processes:
    """What one run started; leaving the block ends all of it."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in reversed(self._started):
            self.stop(process)

    def start(self, name: str, command: Sequence[str], core: int | None) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own, its output in a log of that name."""
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                _launched(command, core),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def ask(self, command: Sequence[str], core: int | None, said: bytes, timeout_s: float) -> bytes:
        """Run a command to its end and return what it answered; raises OSError when it fails or takes too long."""
        try:
            done = subprocess.run(
                _launched(command, core), cwd=ROOT, input=said, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as exc:
            raise OSError(f"no answer within {timeout_s:.0f} s") from exc
        if done.returncode:
            raise OSError(done.stderr.decode(errors="replace")[-600:].strip() or f"exit status {done.returncode}")
        return done.stdout

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """End one process group, softly first."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is not None:
                break
            os.killpg(process.pid, signum)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue
        if process in self._started:
            self._started.remove(process)

    def log_tail(self, name: str, characters: int = 600) -> str:
        """The end of what a process printed."""
        try:
            return (self._logs / f"{name}.log").read_text(errors="replace")[-characters:].strip()
        except OSError:
            return ""
