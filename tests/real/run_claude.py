"""The real Claude Code, through the proxy, on a real vLLM: `python -m tests.real.run_claude INSTALL CLAUDE`.

INSTALL is what setup-vllm.sh printed, CLAUDE what setup-claude.sh printed. The tiny model answers noise; what is tried
is that turns begin, stream and end, and that the command goes home by itself. A wire tap between proxy and engine shows
what arrives there. Exit status 0 when every check holds.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.conformance.programs import (
    NotStartedError,
    Programs,
    Served,
    clean_up_on_sigterm,
    end_group,
    free_port,
    say,
    start_proxy,
)
from tests.conformance.wire import eventually, is_answering, unfinished_requests
from tests.real.engine import MODEL_NAMES, start_vllm

_SESSION_HEADER: Final = "x-claude-code-session-id"
_MAX_OUTPUT_TOKENS: Final = 60
_RUN_S: Final = 400.0
"""A cold prompt of 35,000 tokens takes a minute on one slow core, and two may run at once."""
_LOG_DELAY_S: Final = 5.0
_FEW_TOOLS: Final = ("Read", "Bash")


class CheckFailedError(Exception):
    """Something is not as it must be."""


def check(holds: object, what: str) -> None:
    """Say that a check holds, or raise that it does not."""
    if not holds:
        raise CheckFailedError(what)
    say(f"  ok: {what}")


@dataclass(frozen=True)
class Ending:
    """How one run of the command ended."""

    status: int
    output: str
    seconds: float

    @property
    def is_in_order(self) -> bool:
        """It answered; or it gave up because noise does not end, which it says in so many words."""
        return self.status == 0 or f"exceeded the {_MAX_OUTPUT_TOKENS} output token maximum" in self.output


@dataclass(frozen=True)
class Run:
    """One run that has begun."""

    process: subprocess.Popen[bytes]
    began: float

    def end(self) -> Ending:
        """Wait for it to end by itself.

        Raises:
            CheckFailedError: it did not.
        """
        try:
            output, _ = self.process.communicate(timeout=_RUN_S)
        except subprocess.TimeoutExpired:
            end_group(self.process)
            raise CheckFailedError(f"Claude Code had not ended after {_RUN_S:.0f} s") from None
        ending = Ending(self.process.returncode, output.decode(errors="replace"), monotonic() - self.began)
        said = ending.output.strip()[-160:]
        say(f"  Claude Code ended after {ending.seconds:.0f} s, status {ending.status}: {said!r}")
        return ending


@dataclass(frozen=True)
class Claude:
    """The command, in a home and a folder of its own."""

    executable: Path
    base_url: str
    folder: Path

    def start(self, prompt: str, arguments: Sequence[str] = ()) -> Run:
        """Start one non-interactive run."""
        home, work = self.folder / "home", self.folder / "work"
        home.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        model = MODEL_NAMES[1]
        process = subprocess.Popen(
            [str(self.executable), "-p", prompt, *arguments],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                "HOME": str(home),
                "PATH": os.defpath,
                "TERM": "dumb",
                "ANTHROPIC_BASE_URL": self.base_url,
                "ANTHROPIC_AUTH_TOKEN": "any",
                "ANTHROPIC_MODEL": model,
                "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(_MAX_OUTPUT_TOKENS),
                "MAX_THINKING_TOKENS": "0",
            },
        )
        return Run(process, monotonic())


@dataclass
class Watched:
    """What the proxy's log and the tap have seen; each look gives only what is new."""

    proxy_log: Path
    tap_notes: Path
    _records_seen: int = 0
    _notes_seen: int = 0

    def look(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The proxy's records of finished Messages requests, and the tap's notes of what arrived, probes aside.

        The proxy writes its log a moment later than it answers, so as many records as notes are waited for.
        """
        eventually(lambda: len(self._records()) >= len(self._notes()), within_s=_LOG_DELAY_S)
        records, notes = self._records(), self._notes()
        new = records[self._records_seen :], notes[self._notes_seen :]
        self._records_seen, self._notes_seen = len(records), len(notes)
        return new

    def _records(self) -> list[dict[str, Any]]:
        lines = _json_lines(self.proxy_log)
        return [line for line in lines if line.get("event") == "request.finished" and line["route"] == "messages"]

    def _notes(self) -> list[dict[str, Any]]:
        # What the proxy asks on its own account, it asks with GET; Claude Code has no GET that should come this far.
        return [note for note in _json_lines(self.tap_notes) if note["method"] != "GET"]


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def session_of(note: dict[str, Any]) -> str | None:
    """The session that a request names."""
    return next((value for name, value in note["headers"] if name == _SESSION_HEADER), None)


def check_turns(watched: Watched, endings: Sequence[Ending]) -> list[dict[str, Any]]:
    """What must hold after any number of runs that went on at the same time; returns the tap's notes."""
    messages, arrived = watched.look()
    check(all(ending.is_in_order for ending in endings), "it ended by itself, in order")
    check(len(messages) >= len(endings), f"the proxy logged {len(messages)} finished Messages requests")
    outcomes = sorted({record["outcome"] for record in messages})
    check(outcomes == ["completed"], f"their outcomes are {outcomes}")
    check(all(record["is_stream"] for record in messages), "all of them streamed")
    targets = {note["target"] for note in arrived}
    check(targets == {"/v1/messages?beta=true"}, f"the engine saw {targets}: the query kept, no probe passed on")
    sessions = {session_of(note) for note in arrived}
    check(None not in sessions and len(sessions) == len(endings), f"it saw {len(sessions)} session ids, one a run")
    sizes = sorted(note["body_bytes"] for note in arrived)
    check(sizes == sorted(record["request_bytes"] for record in messages), f"bodies arrived whole: {sizes} bytes")
    return arrived


def try_it(engine: Served, proxy: Served, tap_notes: Path, executable: Path, folder: Path) -> None:
    """All the runs and their checks."""
    watched = Watched(proxy.log, tap_notes)
    claude = Claude(executable, proxy.url, folder)
    say("one session, one turn:")
    arrived = check_turns(watched, [claude.start("Say hello.").end()])
    tools = arrived[0]["body"]["tools"]
    check(tools > len(_FEW_TOOLS), f"it brought all of its {tools} tools")
    say("  headers that arrived: " + ", ".join(name for name, _ in arrived[0]["headers"]))

    say("two sessions at once:")
    both = [claude.start(prompt) for prompt in ("Count to three.", "Name a colour.")]
    check_turns(watched, [run.end() for run in both])

    say(f"one session with the tools {', '.join(_FEW_TOOLS)}:")
    run = claude.start("List the files.", ["--tools", ",".join(_FEW_TOOLS)])
    arrived = check_turns(watched, [run.end()])
    counted = arrived[0]["body"].get("tools")
    check(counted == len(_FEW_TOOLS), f"it brought {counted} tools")
    check(unfinished_requests(engine.url) == 0, "the engine has nothing left to do")


def main(install: Path, executable: Path) -> int:
    """Start everything, try it, stop everything; keep and show the logs when something failed."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-claude-"))
    failure: Exception | None = None
    with Programs(folder) as programs:
        try:
            engine = start_vllm(programs, install)
            notes, port = folder / "tap.jsonl", free_port()
            tap_url = f"http://127.0.0.1:{port}"
            programs.start(
                "tap",
                [sys.executable, "-m", "tests.real.tap", str(port), engine.url.rpartition(":")[2], str(notes)],
                is_ready=lambda: is_answering(tap_url, "/health"),
                within_s=20,
            )
            proxy = start_proxy(programs, tap_url)
            try_it(engine, proxy, notes, executable, folder)
        except (NotStartedError, CheckFailedError) as error:
            failure = error
            programs.show_logs()
    if failure is not None:
        say(f"test-claude: FAILED: {failure}\nwhole logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    say("test-claude: all checks hold")
    return 0


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
