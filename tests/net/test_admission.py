"""Waiting for room over real sockets: a proxy before an engine that says it has a hundred blocks."""

import asyncio
import io
import json
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest

from proxy.app import running
from proxy.config import TidegateConfig
from proxy.telemetry.logs import configure
from tests.fakes.backend import STREAM_HEAD, answering, json_answer, scripted_backend
from tests.net.conftest import Rig, chat
from tests.net.test_upstream_faults import error_of, status_of

FIRST = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
"""The engine counted next to nothing, so that an ended session holds next to nothing."""
OK = json_answer(b'{"usage":{"prompt_tokens":10,"completion_tokens":1}}')


def page(*, blocks=100, start=1_000):
    """A metrics page of an engine of so many blocks of a thousand tokens."""
    return (
        f'vllm:cache_config_info{{engine="0",block_size="1000",num_gpu_blocks="{blocks + 1}"}} 1.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.0\n'
        'vllm:num_requests_running{engine="0"} 0.0\n'
        'vllm:num_requests_waiting{engine="0"} 0.0\n'
        f"process_start_time_seconds {start}\n"
    )


class Engine:
    """A script that streams a first event and goes on when its session is told to end."""

    def __init__(self):
        self.begun = []
        self._ends: dict[str, asyncio.Event] = {}

    async def __call__(self, request, connection):
        """One request."""
        session = request.header("x-session-id")
        self.begun.append(session)
        if session.startswith("silent"):
            await connection.until_closed()
            raise ConnectionError
        await connection.send(STREAM_HEAD)
        await connection.chunk(FIRST)
        await self._ends.setdefault(session, asyncio.Event()).wait()
        await connection.chunk(LAST)
        await connection.send(b"0\r\n\r\n")

    def end(self, session):
        """Let a session's answers end."""
        self._ends.setdefault(session, asyncio.Event()).set()


@asynccontextmanager
async def admitting(script, *, metrics_page=None, settings=None, **sections):
    """A proxy that admits, before one engine; `settings` are those of the backend."""
    async with AsyncExitStack() as stack:
        shown = page() if metrics_page is None else metrics_page
        backend = await stack.enter_async_context(scripted_backend(script, metrics_page=shown))
        listed = [{"url": backend.url, "name": "b0", **(settings or {})}]
        config = TidegateConfig.model_validate({"listen": {"port": 0}, "backends": listed, **sections})
        stream = io.StringIO()
        log = configure("json", "debug", stream)
        stack.callback(log.close)
        yield Rig(await stack.enter_async_context(running(config, log)), [backend], stream)


def asking(session, blocks=40, *, path=b"/v1/chat/completions", extra=b"", stream=True, **fields):
    """A request of a session of so many blocks, as bytes."""
    # Each has a prompt of its own: of an equal one the engine's count would be believed, and that is next to nothing.
    text = (f"{session} " * (blocks * 4_000))[: blocks * 4_000]
    prompt: dict[str, object] = {"messages": [{"role": "user", "content": text}]}
    if path == b"/v1/responses":
        prompt = {"input": text}
    body = json.dumps({"model": "m", "stream": stream, **prompt, **fields}).encode()
    return chat(body, path=path, extra=b"x-session-id: %b\r\n%b" % (session.encode(), extra))


class Client:
    """One request that somebody waits for."""

    def __init__(self, gate, request):
        self._gate = gate
        self._request = request
        self.answer: asyncio.Task[bytes] = asyncio.get_running_loop().create_task(gate.raw(request, timeout_s=20))

    def leave(self):
        """Close the connection."""
        self.answer.cancel()


async def started(gate, engine, *sessions):
    """Clients whose requests have reached the engine, one after the other."""
    clients = []
    for session in sessions:
        clients.append(Client(gate, asking(session)))
        await gate.until(lambda session=session: session in engine.begun)
    return clients


def waiting(gate):
    """Requests that wait at the proxy."""
    return sum(
        sample.value
        for family in gate.proxy.metrics.registry.collect()
        if family.name == "tidegate_waiting_requests"
        for sample in family.samples
    )


def header(answer, name):
    """A header's value."""
    head = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return next((line.partition(b": ")[2] for line in head if line.lower().startswith(name + b":")), None)


async def test_two_fit_and_the_third_starts_when_one_ends():
    """Nothing reaches the engine beyond its room, and the answer says how long it was kept waiting."""
    engine = Engine()
    async with admitting(engine) as gate:
        first, second = await started(gate, engine, "one", "two")
        third = Client(gate, asking("three"))
        await gate.until(lambda: waiting(gate) == 1)
        assert engine.begun == ["one", "two"]

        await asyncio.sleep(0.05)
        engine.end("one")
        await gate.until(lambda: "three" in engine.begun)
        engine.end("two")
        engine.end("three")
        answers = [await client.answer for client in (first, second, third)]

        assert [status_of(answer) for answer in answers] == [200, 200, 200]
        assert [header(answer, b"x-tidegate-admission") for answer in answers] == [b"new"] * 3
        held = [int(header(answer, b"x-tidegate-queue-ms") or -1) for answer in answers]
        assert held[0] < 50 <= held[2]
        assert gate.inflight() == 0


async def test_a_returning_turn_passes_who_waits():
    """L30: the session is there; a newcomer is not."""
    engine = Engine()
    async with admitting(engine) as gate:
        engine.end("small")
        assert status_of(await gate.raw(asking("small", 2))) == 200
        await started(gate, engine, "one", "two")
        Client(gate, asking("three", 30))
        await gate.until(lambda: waiting(gate) == 1)

        answer = await gate.raw(asking("small", 2))

        assert header(answer, b"x-tidegate-admission") == b"resident"
        assert waiting(gate) == 1


async def test_the_answer_says_whether_its_prefix_was_believed_cached():
    """What a user looks at first when an agent has gone slow."""
    counted = json_answer(b'{"usage":{"prompt_tokens":20000,"completion_tokens":1}}')
    async with admitting(answering(counted)) as gate:
        answers = [await gate.raw(asking("one", 20, stream=False)) for _ in range(2)]

        assert [header(answer, b"x-tidegate-prefix") for answer in answers] == [b"cold", b"warm"]


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        (b"/v1/chat/completions", 429, "rate_limit_error"),
        (b"/v1/messages", 429, "rate_limit_error"),
        (b"/v1/responses", 503, "server_error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_hold_is_refused_in_the_clients_dialect(path, status, kind, stream):
    """L18, L20: the same status and hint, streamed or not; 503 for Codex, which takes a 429 for final."""
    engine = Engine()
    async with admitting(engine, queue={"max_hold_s": 0.1}) as gate:
        await started(gate, engine, "one", "two")

        answer = await gate.raw(asking("three", path=path, stream=stream))

        assert status_of(answer) == status
        assert header(answer, b"retry-after") == b"1"
        assert header(answer, b"x-should-retry") != b"false"
        assert header(answer, b"content-type") == b"application/json"
        error = error_of(answer)
        assert error["message"]
        assert kind in error["type"] or path != b"/v1/messages"
        assert engine.begun == ["one", "two"]
        await gate.until(lambda: gate.outcomes().get("refused_overloaded") == 1)


async def test_a_refused_session_keeps_its_place():
    """It comes back and goes before one that came while it was waiting."""
    engine = Engine()
    async with admitting(engine) as gate:
        await started(gate, engine, "one", "two")
        early = await gate.raw(asking("early", extra=b"x-stainless-timeout: 1\r\n"))  # held for four fifths of it
        late = Client(gate, asking("late"))
        await gate.until(lambda: waiting(gate) == 1)
        again = Client(gate, asking("early"))
        await gate.until(lambda: waiting(gate) == 2)

        engine.end("one")
        await gate.until(lambda: len(engine.begun) == 3)

        assert status_of(early) == 429
        assert engine.begun[2] == "early"
        for session in ("two", "early", "late"):
            engine.end(session)
        assert [status_of(await client.answer) for client in (again, late)] == [200, 200]


async def test_a_full_queue_refuses_at_once():
    """With a time to come back."""
    engine = Engine()
    async with admitting(engine, queue={"max_waiting": 1}) as gate:
        await started(gate, engine, "one", "two")
        Client(gate, asking("three"))
        await gate.until(lambda: waiting(gate) == 1)

        answer = await gate.raw(asking("four"), timeout_s=2)

        assert status_of(answer) == 429
        assert 1 <= int(header(answer, b"retry-after") or 0) <= 60


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_while_it_waits_never_reaches_the_engine(how):
    """It is gone within a second, and what it would have taken is free for others."""
    engine = Engine()
    async with admitting(engine) as gate:
        await started(gate, engine, "one", "two")
        parts = urlsplit(gate.proxy.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(asking("gone"))
        await gate.until(lambda: waiting(gate) == 1)

        writer.close() if how == "close" else writer.transport.abort()
        await gate.until(lambda: waiting(gate) == 0, timeout_s=1)

        engine.end("one")
        engine.end("two")
        engine.end("next")
        assert status_of(await gate.raw(asking("next"))) == 200
        assert "gone" not in engine.begun
        await gate.until(lambda: gate.outcomes().get("client_closed") == 1)
        assert gate.inflight() == 0


async def test_leaving_in_the_moment_of_being_placed_leaks_nothing():
    """Again and again one leaves as room comes free: afterwards everything is free."""
    engine = Engine()
    async with admitting(engine) as gate:
        for number in range(10):
            running_one = f"a{number}"
            await started(gate, engine, running_one)
            leaver = Client(gate, asking(f"silent-{number}", 80))
            await gate.until(lambda: waiting(gate) == 1)
            engine.end(running_one)
            await asyncio.sleep(0.001 * number)
            leaver.leave()
            await gate.until(lambda: waiting(gate) == 0 and gate.inflight() == 0)

        engine.end("last")
        answer = await gate.raw(asking("last", 80))

        assert status_of(answer) == 200
        assert int(header(answer, b"x-tidegate-queue-ms") or -1) < 1_000


async def test_a_resend_takes_the_place_of_the_copy_that_waits():
    """L22: the first is answered, one of them reaches the engine."""
    engine = Engine()
    async with admitting(engine) as gate:
        await started(gate, engine, "one", "two")
        first = Client(gate, asking("three"))
        await gate.until(lambda: waiting(gate) == 1)
        second = Client(gate, asking("three"))

        assert status_of(await first.answer) == 429
        assert waiting(gate) == 1
        engine.end("one")
        engine.end("three")
        assert status_of(await second.answer) == 200
        assert engine.begun.count("three") == 1


async def test_an_engine_that_refuses_holds_no_room():
    """A 400 is passed on, and the next large session starts at once."""
    too_long = json_answer(b'{"error":{"message":"too long","type":"BadRequestError"}}', 400)
    async with admitting(answering(too_long)) as gate:
        answers = [await gate.raw(asking(f"s{number}", 90)) for number in range(3)]

        assert [status_of(answer) for answer in answers] == [400] * 3
        assert all(int(header(answer, b"x-tidegate-queue-ms") or -1) < 1_000 for answer in answers)


async def test_an_engine_that_resets_holds_no_room():
    """The connection breaks before an answer; nothing stays booked."""

    async def resetting(_request, connection):
        connection.reset()

    async with admitting(resetting) as gate:
        for number in range(3):
            assert status_of(await gate.raw(asking(f"s{number}", 90), timeout_s=2)) in (502, 503)
        await gate.until(lambda: gate.inflight() == 0)


async def test_an_engine_without_metrics_is_not_held_back():
    """Its size is not known: everything passes, and the answer says so."""
    engine = Engine()
    async with admitting(engine, metrics_page="") as gate:
        clients = await started(gate, engine, *"abcdef")
        for session in "abcdef":
            engine.end(session)

        answers = [await client.answer for client in clients]

        assert {header(answer, b"x-tidegate-admission") for answer in answers} == {b"unlimited"}


async def test_shadow_mode_lets_all_pass():
    """It only says who would have waited."""
    engine = Engine()
    async with admitting(engine, admission={"mode": "shadow"}) as gate:
        clients = await started(gate, engine, *"abcd")
        for session in "abcd":
            engine.end(session)

        assert [status_of(await client.answer) for client in clients] == [200] * 4


async def test_switched_off_it_neither_holds_nor_tells():
    """No gate, no receipt of one."""
    engine = Engine()
    async with admitting(engine, admission={"mode": "off"}) as gate:
        clients = await started(gate, engine, *"abc")
        for session in "abc":
            engine.end(session)

        assert {header(await client.answer, b"x-tidegate-admission") for client in clients} == {None}


async def test_a_restarted_engine_is_empty():
    """What rested on the old process keeps nobody out of the new one; the report wakes who waits."""
    large = json_answer(b'{"usage":{"prompt_tokens":80000,"completion_tokens":1}}')
    async with admitting(answering(large)) as gate:
        assert status_of(await gate.raw(asking("one", 80, stream=False))) == 200
        second = Client(gate, asking("two", 80, stream=False))
        await gate.until(lambda: waiting(gate) == 1)

        gate.backend.metrics_page = page(start=2_000)

        answer = await second.answer
        assert status_of(answer) == 200
        assert int(header(answer, b"x-tidegate-queue-ms") or -1) < 4_000


async def test_small_requests_are_not_held_up_by_each_other():
    """No harm: sixty of them at once all reach the engine, streamed or not."""
    reached = asyncio.Event()
    begun = 0

    async def script(_request, connection):
        nonlocal begun
        begun += 1
        if begun == 60:
            reached.set()
        await reached.wait()
        await connection.send(OK)

    async with admitting(script, metrics_page=page(blocks=400)) as gate:
        clients = [Client(gate, asking(f"{number}", 0, stream=False)) for number in range(60)]
        async with asyncio.timeout(10):
            answers = [await client.answer for client in clients]

        assert [status_of(answer) for answer in answers] == [200] * 60
