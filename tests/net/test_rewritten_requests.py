"""What settings change about a request on its way, over real sockets, and what nothing changes."""

import json
import threading

import pytest

from tests.fakes.backend import STREAM_HEAD, answering, json_answer, streaming
from tests.net.conftest import chat
from tests.net.test_admission import admitting, header
from tests.net.test_upstream_faults import status_of

OK = json_answer(b'{"usage":{"prompt_tokens":10,"completion_tokens":1}}')
ALIASES = {"aliases": {"claude-haiku-*": "m", "claude-main": "m"}}
CONTENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":20}}\n\n'
DONE = b"data: [DONE]\n\n"


async def test_l44_a_background_model_is_routed_like_any_other(rig):
    """The body's one field is another, all else is the client's; metrics know the served name, the answer says it."""
    body = b'{ "model":"claude-haiku-4-5",  "tools":[{"model":"claude-haiku-4-5"}], "max_tokens":1 }'
    async with rig(answering(OK), models=ALIASES) as gate:
        answer = await gate.raw(chat(body, path=b"/v1/messages?beta=true"))

        assert status_of(answer) == 200
        assert gate.backend.seen[0].body == body.replace(b"claude-haiku-4-5", b"m", 1)
        assert gate.backend.seen[0].line == "POST /v1/messages?beta=true HTTP/1.1"
        assert header(answer, b"x-tidegate-model") == b"m"
        assert gate.metric("tidegate_requests_total", route="messages", model="m", outcome="completed") == 1


async def test_l44_without_an_alias_no_byte_changes(rig):
    """Names that are served, and bodies without a name, with aliases configured."""
    async with rig(answering(OK), models=ALIASES) as gate:
        bodies = [b'{"model" : "m" }', b'{"stream":false}']
        answers = [await gate.raw(chat(body)) for body in bodies]

        assert [seen.body for seen in gate.backend.seen] == bodies
        assert {header(answer, b"x-tidegate-model") for answer in answers} == {None}


async def test_l44_exact_aliases_are_in_the_list_of_models(rig):
    """In both forms, on either credential header, and as cards of their own; from memory, without a redirect."""
    extra = b"anthropic-version: 2023-06-01\r\nx-api-key: k\r\n"
    async with rig(answering(OK), models=ALIASES, auth={"keys": ["k"]}) as gate:
        head = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        page = await gate.raw(b"GET /v1/models?limit=1000" + head + extra + b"\r\n")
        plain = await gate.raw(b"GET /v1/models" + head + b"Authorization: Bearer k\r\n\r\n")
        card = await gate.raw(b"GET /v1/models/claude-main" + head + extra + b"\r\n")
        listed = json.loads(page.partition(b"\r\n\r\n")[2])

        assert [(one["id"], one["display_name"]) for one in listed["data"]] == [("m", "m"), ("claude-main",) * 2]
        assert [one["id"] for one in json.loads(plain.partition(b"\r\n\r\n")[2])["data"]] == ["m", "claude-main"]
        assert json.loads(card.partition(b"\r\n\r\n")[2])["id"] == "claude-main"
        assert {status_of(answer) for answer in (page, plain, card)} == {200}
        assert gate.backend.seen == []


async def test_l35_a_clamped_limit_is_said_in_a_header(rig):
    """Only where it is switched on and the model's context is known."""
    asked = b'{"model":"m","max_tokens":64000,"messages":[]}'
    async with rig(answering(OK), models={"clamp_max_tokens": True}) as gate:
        gate.proxy.fleet.models.update("b0", [{"id": "m", "max_model_len": 32_000}])
        answer = await gate.raw(chat(asked, path=b"/v1/messages"))
        lowered = json.loads(gate.backend.seen[0].body)["max_tokens"]

        assert 31_000 < lowered < 32_000
        assert header(answer, b"x-tidegate-max-tokens") == b"%d" % lowered
    async with rig(answering(OK)) as gate:
        gate.proxy.fleet.models.update("b0", [{"id": "m", "max_model_len": 32_000}])
        await gate.raw(chat(asked, path=b"/v1/messages"))

        assert gate.backend.seen[0].body == asked


async def test_l46_an_uncounted_stream_is_counted_and_the_client_sees_nothing_of_it(rig):
    """One field more for the engine, one event less for the client, and the numbers in the metrics."""
    asked = b'{"model":"m","stream":true}'
    async with rig(streaming(CONTENT, CONTENT, USAGE, DONE), usage={"ask_engine": "on"}) as gate:
        answer = await gate.raw(chat(asked))

        assert gate.backend.seen[0].body == b'{"stream_options":{"include_usage":true},"model":"m","stream":true}'
        assert b"usage" not in answer
        assert answer.count(CONTENT) == 2
        assert answer.endswith(DONE + b"\r\n0\r\n\r\n")
        assert gate.metric("tidegate_tokens_total", model="m", kind="prompt") == 50
        assert gate.metric("tidegate_tokens_total", model="m", kind="completion") == 20
        assert gate.outcomes() == {"completed": 1}


async def test_l46_who_asked_for_usage_gets_it(rig):
    """Nothing is added and nothing taken out; off, nothing ever is."""
    asked = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    for mode in ("on", "off"):
        async with rig(streaming(CONTENT, USAGE, DONE), usage={"ask_engine": mode}) as gate:
            answer = await gate.raw(chat(asked))

            assert gate.backend.seen[0].body == asked
            assert USAGE in answer


async def test_l46_auto_asks_only_engines_that_are_known():
    """By their metrics page: others may refuse a field that they do not know."""
    asked = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
    seen = []
    for page in (None, ""):
        async with admitting(streaming(CONTENT, USAGE, DONE), metrics_page=page, usage={"ask_engine": "auto"}) as gate:
            answer = await gate.raw(chat(asked))
            seen.append((gate.backend.seen[0].body != asked, USAGE in answer))

    assert seen == [(True, False), (False, True)]


async def test_l46_a_hidden_stream_that_breaks_still_looks_broken(rig):
    """With the error event where one may stand, and with every byte that came before."""

    async def breaking(_request, connection):
        await connection.send(STREAM_HEAD)
        await connection.chunk(CONTENT)
        connection.close()

    async def breaking_inside(_request, connection):
        await connection.send(STREAM_HEAD)
        await connection.chunk(CONTENT + b'data: {"cho')
        connection.close()

    async with rig(breaking, usage={"ask_engine": "on"}) as gate:
        between = await gate.raw(chat())
        gate.backend.script = breaking_inside
        inside = await gate.raw(chat())

        assert b'data: {"error"' in between
        assert not between.endswith(b"0\r\n\r\n")
        assert inside.endswith(b'data: {"cho\r\n')
        assert gate.outcomes() == {"upstream_error_reset": 2}


async def test_l46_an_error_instead_of_a_stream_passes(rig):
    """Nothing is taken out of what is no event stream."""
    refusal = json_answer(b'{"error":{"message":"usage","type":"x"}}', 400)
    async with rig(answering(refusal), usage={"ask_engine": "on"}) as gate:
        assert (await gate.raw(chat())).endswith(b'{"error":{"message":"usage","type":"x"}}')


@pytest.mark.parametrize("path", [b"/v1/messages?beta=true", b"/v1/responses?a=%20&a=b;c", b"/v1/chat/completions?"])
async def test_l48_unknown_headers_fields_and_queries_pass(rig, path):
    """Whatever tomorrow's clients send, byte for byte and in order; up to 32 kB in one header."""
    headers = (
        b"anthropic-beta: a-2031,b-2032\r\nanthropic-tomorrow: x\r\nX-Claude-Code-Tomorrow: y z\r\n"
        b"x-stainless-Retry-Count: 0\r\nx-long: %b\r\n" % (b"l" * 32_000)
    )
    body = b'{"model":"m","field_of_tomorrow":{"model":"n", "on" : true},"max_tokens":1}'
    async with rig(answering(OK), models=ALIASES) as gate:
        answer = await gate.raw(chat(body, path=path, extra=headers))
        seen = gate.backend.seen[0]

        assert status_of(answer) == 200
        assert seen.line == f"POST {path.decode()} HTTP/1.1"
        assert seen.body == body
        sent = [tuple(line.split(": ", 1)) for line in headers.decode().split("\r\n") if line]
        assert [one for one in seen.headers if one in sent] == sent


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        (b"Authorization: Bearer good\r\n", 200),
        (b"x-api-key: good\r\n", 200),
        (b"Authorization: Bearer good\r\nx-api-key: stale\r\n", 200),
        (b"Authorization: Bearer stale\r\nx-api-key: good\r\n", 200),
        (b"Authorization: bearer  good\r\n", 200),
        (b"Authorization: Basic good\r\nx-api-key: stale\r\n", 401),
        (b"", 401),
    ],
)
async def test_l43_a_valid_key_in_either_header_opens_and_none_goes_further(rig, extra, status):
    """The engine gets its own key, and no line of the log knows either."""
    async with rig(answering(OK), auth={"keys": ["good"]}) as gate:
        answer = await gate.raw(chat(path=b"/v1/messages", extra=extra))

        assert status_of(answer) == status
        assert len(gate.backend.seen) == (status == 200)
        for seen in gate.backend.seen:
            assert {name.lower() for name, _ in seen.headers}.isdisjoint({"authorization", "x-api-key"})
        await gate.until(lambda: '"request.finished"' in gate.log.getvalue())
        assert not {"good", "stale"} & set(gate.log.getvalue().replace('"', " ").split())


@pytest.mark.parametrize("is_on", [True, False])
async def test_l01_the_engine_gets_the_attribution_line_unless_a_setting_takes_it_out(rig, is_on):
    """Untouched by default; with the setting all but that line is what the client sent."""
    block = b'{"type":"text","text":"x-anthropic-billing-header: cch=a1b2c;"},'
    body = b'{"model":"m", "system":[%b {"type":"text","text":"S"}],"messages":[],"max_tokens":1}'
    async with rig(answering(OK), routing={"strip_attribution": is_on}) as gate:
        answer = await gate.raw(chat(body % block, path=b"/v1/messages"))

        assert status_of(answer) == 200
        assert gate.backend.seen[0].body == body % (b"" if is_on else block)


@pytest.mark.parametrize("tail", [b"}", b""])
async def test_a_large_body_is_read_beside_the_loop_and_ends_the_same(rig, tail):
    """Passed on byte for byte, or refused in the same words as a small one."""
    body = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"%b"}]' % (b"x " * 1_500_000) + tail
    threads = []

    async with rig(answering(OK)) as gate:
        threading.setprofile(lambda *_: threads.append(threading.current_thread().name))
        try:
            answer = await gate.raw(chat(body))
        finally:
            threading.setprofile(None)

        assert status_of(answer) == (200 if tail else 400)
        assert [seen.body for seen in gate.backend.seen] == ([body] if tail else [])
        assert any(name.startswith("asyncio") for name in threads)
