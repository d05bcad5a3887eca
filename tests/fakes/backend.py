"""A backend that follows a script: raw bytes over a real socket, every request it saw kept."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class SeenRequest:
    """One request as it arrived."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    connection_number: int

    def header(self, name: str) -> str | None:
        """The value of a header, or None."""
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)


class Connection:
    """What a script can do with the connection that a request came on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def close(self) -> None:
        """Close in good order."""
        self._writer.close()

    def reset(self) -> None:
        """Close with RST."""
        self._writer.transport.abort()

    async def until_closed(self) -> None:
        """Wait until the other side has closed."""
        while await self.reader.read(65_536):
            pass


Script = Callable[[SeenRequest, Connection], Awaitable[None]]


@dataclass
class ScriptedBackend:
    """A listening backend. `script` may be replaced at any time."""

    script: Script
    url: str = ""
    seen: list[SeenRequest] = field(default_factory=list)
    connections: int = 0
    health_status: int = 200
    models: tuple[str, ...] = ("m",)
    metrics_page: str | None = ""
    """What `/metrics` shows, empty for a 404; None has the script answer it."""
    closed_early: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the proxy closed a connection while the script was waiting in `until_closed`."""

    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection in a task of its own."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)

    async def stop(self) -> None:
        """Crash: nobody listens any more, every connection is cut off and its script ended."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        connection = Connection(reader, writer)
        try:
            while (request := await _read_request(reader, number)) is not None:
                if request.line.startswith("GET /health"):
                    await connection.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % self.health_status)
                elif request.line.startswith("GET /metrics") and self.metrics_page is not None:
                    await connection.send(json_answer(self.metrics_page.encode(), 200 if self.metrics_page else 404))
                elif request.line.startswith("GET /v1/models"):
                    cards = ",".join(f'{{"id":"{name}","object":"model","created":1}}' for name in self.models)
                    await connection.send(json_answer(f'{{"object":"list","data":[{cards}]}}'.encode()))
                else:
                    self.seen.append(request)
                    await self.script(request, connection)
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed_early.set()
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader, number: int) -> SeenRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.rstrip("\r\n").split("\r\n")
    headers = [(name, value) for name, _, value in (entry.partition(": ") for entry in rest)]
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return SeenRequest(line, headers, await reader.readexactly(length), number)


@asynccontextmanager
async def scripted_backend(script: Script, *, metrics_page: str | None = "") -> AsyncIterator[ScriptedBackend]:
    """Listen on a free port of 127.0.0.1 for the length of the block."""
    backend = ScriptedBackend(script, metrics_page=metrics_page)
    server = backend._server = await asyncio.start_server(backend.accept, "127.0.0.1", 0, backlog=1024)
    backend.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        await backend.stop()


def json_answer(body: bytes, status: int = 200, headers: bytes = b"") -> bytes:
    """A complete JSON answer."""
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b" % (
        status, len(body), headers, body
    )  # fmt: skip


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def answering(raw: bytes) -> Script:
    """A script that sends the same bytes to every request."""

    async def script(_request: SeenRequest, connection: Connection) -> None:
        await connection.send(raw)

    return script


def streaming(*events: bytes) -> Script:
    """A script that sends a complete event stream, one chunk an event."""

    async def script(_request: SeenRequest, connection: Connection) -> None:
        await connection.send(STREAM_HEAD)
        for event in events:
            await connection.chunk(event)
        await connection.send(b"0\r\n\r\n")

    return script
