"""The real Claude Code kept waiting: `python -m tests.real.run_claude_waits CLAUDE`, which setup-claude.sh printed.

No engine: a scripted backend says that it has a hundred blocks, another session fills them, and Claude Code waits in
front of the real proxy, on a stream that is opened early. A minute and a half, all stories at once. Exit status 0 when
every run answers without an error, and the proxy's log says what happened.
"""

import asyncio
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from proxy.app import running
from proxy.config import TidegateConfig
from proxy.telemetry.logs import configure
from tests.conformance.programs import say
from tests.fakes.backend import STREAM_HEAD, Connection, SeenRequest, json_answer, scripted_backend
from tests.net.test_admission import FIRST, LAST, asking, page

_MODEL: Final = "your-model"
_ANSWER: Final = "HELLO FROM THE ENGINE"
_FAILURE: Final = json_answer(b'{"error":{"message":"the engine hiccuped","type":"internal_server_error"}}', 500)
_END_S: Final = 200.0
_TAKEN_S: Final = 10.0


@dataclass(frozen=True)
class Story:
    """What happens to one run.

    Attributes:
        outcomes: how its requests must end, in order, what repeats itself said once; `early` behind one whose stream
            was opened early.
        requests: at least so many; its pauses are partly chance.
        occupied_s: for how long another session fills the engine.
        silent_s: between the engine's head and its first event.
        fails_first: the first request that reaches the engine is answered with 500.
        queue: settings of the queue.
    """

    outcomes: tuple[str, ...]
    requests: int = 1
    occupied_s: float = 0.0
    silent_s: float = 0.0
    fails_first: bool = False
    queue: Mapping[str, float] = field(default_factory=dict)


STORIES: Final[Mapping[str, Story]] = {
    "waits, then is answered": Story(("completed early",), occupied_s=35.0),
    "is refused in its stream, comes back": Story(
        ("refused_overloaded early", "completed"), occupied_s=40.0, queue={"max_hold_s": 22.0}
    ),
    "is refused again and again": Story(
        ("refused_overloaded early", "refused_overloaded", "completed"),
        requests=5,
        occupied_s=32.0,
        queue={"max_hold_s": 3.0, "early_stream_after_s": 1.0},
    ),
    "a silent prefill": Story(("completed",), silent_s=60.0),
    "an engine that fails once": Story(("upstream_error_status early", "completed"), occupied_s=30.0, fails_first=True),
}


def event(kind: str, **fields: Any) -> bytes:
    """One event of the Messages dialect."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def answer() -> list[bytes]:
    """A whole short answer."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": _MODEL, "content": []}
    usage = {"input_tokens": 10, "output_tokens": 0}
    return [
        event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": _ANSWER}),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 5}),
        event("message_stop"),
    ]


class Engine:
    """The scripted backend of one story."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._has_failed = not story.fails_first
        self.is_free = asyncio.Event()
        self.is_taken = asyncio.Event()

    async def __call__(self, request: SeenRequest, connection: Connection) -> None:
        """One request."""
        if not self._has_failed and "/messages" in request.line:
            self._has_failed = True
            await connection.send(_FAILURE)
            return
        await connection.send(STREAM_HEAD)
        if "/messages" in request.line:
            await asyncio.sleep(self._story.silent_s)
            events = answer()
        else:
            await connection.chunk(FIRST)
            self.is_taken.set()
            await self.is_free.wait()
            events = [LAST]
        for piece in events:
            await connection.chunk(piece)
        await connection.send(b"0\r\n\r\n")


async def run_claude(executable: Path, base_url: str, folder: Path) -> tuple[int, str]:
    """Run it once in a home and a folder of its own; returns its status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        str(executable),
        "-p",
        "Say hello.",
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            "HOME": str(folder),
            "PATH": os.defpath,
            "TERM": "dumb",
            "ANTHROPIC_BASE_URL": base_url,
            "ANTHROPIC_AUTH_TOKEN": "any",
            "ANTHROPIC_MODEL": _MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": _MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
        },
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _END_S)
    except TimeoutError:
        process.kill()
        return -1, f"had not ended after {_END_S:.0f} s"
    return process.returncode or 0, output.decode(errors="replace").strip()


async def play(name: str, story: Story, executable: Path) -> bool:
    """One story; says whether it went as it should."""
    engine = Engine(story)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-claude-")))
        backend = await stack.enter_async_context(scripted_backend(engine, metrics_page=page()))
        backend.models = (_MODEL, "m")  # the second is what whoever fills the engine asks for
        config = {"listen": {"port": 0}, "backends": [{"url": backend.url, "name": "b0"}], "queue": dict(story.queue)}
        lines = io.StringIO()
        log = configure("json", "info", lines)
        stack.callback(log.close)
        proxy = await stack.enter_async_context(running(TidegateConfig.model_validate(config), log))
        if story.occupied_s:
            host, _, port = proxy.url.removeprefix("http://").rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(asking("occupier", 92))
            async with asyncio.timeout(_TAKEN_S):
                await engine.is_taken.wait()
            asyncio.get_running_loop().call_later(story.occupied_s, engine.is_free.set)
        status, output = await run_claude(executable, proxy.url, folder)
        engine.is_free.set()
        await asyncio.sleep(0.5)  # the log is written by a thread
        outcomes = _endings(lines.getvalue())
    told = tuple(outcome for outcome, _ in groupby(outcomes))
    is_well = (status, output) == (0, _ANSWER) and told == story.outcomes and len(outcomes) >= story.requests
    say(f"{'ok' if is_well else 'FAILED'}: {name}: status {status}, {output[-160:]!r}; {', '.join(outcomes)}")
    return is_well


def _endings(log: str) -> list[str]:
    lines = [json.loads(line) for line in log.splitlines() if '"request.finished"' in line]
    return [line["outcome"] + " early" * ("early_stream" in line) for line in lines if line["route"] == "messages"]


async def main(executable: Path) -> int:
    """All stories at once."""
    went_well = await asyncio.gather(*(play(name, story, executable) for name, story in STORIES.items()))
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
