"""Where a story is played: a scripted engine, the proxy in front of it, and one run of a client after the other."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.conformance.programs import Served
from tests.conformance.wire import eventually
from tests.real.clients.engine import ScriptedEngine

_LOG_DELAY_S: Final = 5.0
NOTE_FILE: Final = "a.txt"
NOTE_WORDS: Final = "the-file-was-read"


@dataclass(frozen=True)
class Printed:
    """What one run of a client left.

    Attributes:
        status: its exit status; negative when it was ended because it took too long.
        output: stdout and stderr together.
    """

    status: int
    output: str
    seconds: float

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines that are JSON objects: what the clients print when they are asked for events."""
        found = []
        for line in self.output.splitlines():
            with suppress(ValueError):
                parsed = json.loads(line)
                if isinstance(parsed, dict):
                    found.append(parsed)
        return found


@dataclass
class Stage:
    """One client's stage. Its home and its folder of work are its own and stay for the length of the run."""

    engine: ScriptedEngine
    proxy: Served
    folder: Path
    _log_seen: int = 0

    @property
    def home(self) -> Path:
        """The client's home."""
        return self.folder / "home"

    @property
    def work(self) -> Path:
        """The folder that the client works in, with one file to read."""
        return self.folder / "work"

    async def clear(self) -> None:
        """A new home and a new folder, once the last run is all logged; no run knows of another."""
        await self.outcomes(len(self.engine.asked))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.work.mkdir()
        (self.work / NOTE_FILE).write_text(NOTE_WORDS + "\n")
        self._log_seen = len(self._finished())

    def keep(self, where: Path) -> None:
        """Keep what the client printed and what was asked, for whoever looks into a failure."""
        where.mkdir()
        shutil.copy(self.folder / "printed", where / "printed")
        for number, asked in enumerate(self.engine.asked):
            head = "\n".join([asked.request.line, *(f"{name}: {value}" for name, value in asked.request.headers)])
            (where / f"asked-{number}").write_bytes(head.encode() + b"\n\n" + asked.request.body)

    async def run(self, command: Sequence[str], environment: Mapping[str, str], within_s: float) -> Printed:
        """Run a client to its end, or end it and all that it started when it takes too long."""
        began = monotonic()
        printed = self.folder / "printed"
        with printed.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.work,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={
                    "HOME": str(self.home),
                    "PATH": os.environ["PATH"],
                    "TERM": "dumb",
                    "NO_COLOR": "1",
                    **environment,
                },
            )
        try:
            status = await asyncio.wait_for(process.wait(), within_s)
        except TimeoutError:
            status = -signal.SIGKILL
        finally:
            # Servers that a client left behind are of its group too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return Printed(status, printed.read_text(errors="replace"), monotonic() - began)

    async def outcomes(self, at_least: int) -> list[str]:
        """How the proxy says the requests of this run ended; its log is written a moment after the answers."""
        await asyncio.to_thread(eventually, lambda: len(self._of_this_run()) >= at_least, within_s=_LOG_DELAY_S)
        return [str(line["outcome"]) for line in self._of_this_run()]

    def _of_this_run(self) -> list[dict[str, Any]]:
        return self._finished()[self._log_seen :]

    def _finished(self) -> list[dict[str, Any]]:
        lines = self.proxy.log.read_text(errors="replace").splitlines()
        parsed = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in parsed if line.get("event") == "request.finished" and line["route"] != "count_tokens"]
