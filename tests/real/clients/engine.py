"""The scripted engine: answers every generating request as the story of the moment says, and keeps what was asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from tests.fakes.backend import STREAM_HEAD, Connection, SeenRequest, json_answer, scripted_backend
from tests.real.clients.replies import Asked, Cut, Refused, Reply, Silent, Story, Text, in_turn
from tests.real.clients.shapes import error_body, events, whole

MODEL: Final = "scripted-model"
CONTEXT_TOKENS: Final = 65_536
_BETWEEN_EVENTS_S: Final = 0.02
"""Also between the last event and the end of the body: some clients leave as soon as they have the former."""
_COUNTED: Final = {"input_tokens": 1_000}


@dataclass
class ScriptedEngine:
    """Set `story` and read `asked`."""

    url: str = ""
    story: Story = field(default_factory=lambda: in_turn(Text("There is no story.")))
    asked: list[Asked] = field(default_factory=list)

    def tell(self, story: Story) -> None:
        """Begin another story; what was asked before is forgotten."""
        self.story, self.asked = story, []

    async def serve(self, request: SeenRequest, connection: Connection) -> None:
        """Answer one request; the backend's script."""
        asked = _read(request)
        if asked.path.endswith("/count_tokens"):
            await connection.send(json_answer(json.dumps(_COUNTED).encode()))
            return
        self.asked.append(asked)
        await _send(asked, self.story(asked), connection)


def _read(request: SeenRequest) -> Asked:
    try:
        body = json.loads(request.body)
    except ValueError:
        body = {}
    return Asked(monotonic(), request, body if isinstance(body, dict) else {})


async def _send(asked: Asked, reply: Reply, connection: Connection) -> None:
    if isinstance(reply, Refused):
        headers = b""
        if reply.retry_after is not None:
            headers += b"Retry-After: %b\r\n" % reply.retry_after.encode()
        if reply.should_retry is not None:
            headers += b"x-should-retry: %b\r\n" % reply.should_retry.encode()
        body = json.dumps(error_body(asked.path, reply)).encode()
        await connection.send(json_answer(body, reply.status, headers))
        return
    model = str(asked.body.get("model"))
    answer = reply.then if isinstance(reply, Silent) else reply
    if not asked.is_stream:
        if isinstance(reply, Silent):
            await asyncio.sleep(reply.seconds)
        await connection.send(json_answer(json.dumps(whole(asked.path, model, answer)).encode()))
        return
    await connection.send(STREAM_HEAD)
    if isinstance(reply, Silent):
        await asyncio.sleep(reply.seconds)
    for event in events(asked.path, model, answer):
        await connection.chunk(event)
        await asyncio.sleep(_BETWEEN_EVENTS_S)
    if isinstance(answer, Cut):
        connection.reset()
        return
    await connection.send(b"0\r\n\r\n")


@asynccontextmanager
async def scripted_engine() -> AsyncIterator[ScriptedEngine]:
    """Listen for the length of the block."""
    engine = ScriptedEngine()
    async with scripted_backend(engine.serve) as backend:
        backend.models = (MODEL,)
        engine.url = backend.url
        yield engine
