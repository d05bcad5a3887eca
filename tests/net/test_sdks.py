"""The official SDKs before scripted backends: what they raise, what they try again, and what they never notice."""

import json
from typing import Any

import anthropic
import openai
import pytest

from proxy.core.retry_hints import hint_s
from tests.fakes.backend import answering, json_answer, streaming
from tests.net.test_client_errors import TOO_LONG, openai_error

ASK: list[Any] = [{"role": "user", "content": "hello"}]
AT_ONCE = next(name for name in map(str, range(100)) if hint_s(2, name) == 1)
"""A request's id with which a refusal says one second."""
FULL = json_answer(b"full", 429)
NOT_FOUND = json_answer(b'{"detail":"Not Found"}', 404)
MESSAGE = json_answer(
    b'{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"model":"m",'
    b'"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":1}}'
)
RESPONSE = json_answer(
    b'{"id":"resp_1","object":"response","created_at":1,"model":"m","status":"completed","output":[],'
    b'"parallel_tool_calls":true,"tool_choice":"auto","tools":[]}'
)


def claude(gate, **more):
    """Anthropic's SDK pointed at the proxy."""
    return anthropic.AsyncAnthropic(base_url=gate.proxy.url, api_key="any", timeout=20, **more)


def gpt(gate, **more):
    """OpenAI's SDK pointed at the proxy."""
    return openai.AsyncOpenAI(base_url=f"{gate.proxy.url}/v1", api_key="any", timeout=20, **more)


def in_turn(*answers):
    """A script that gives each request the next answer."""
    left = list(answers)

    async def script(_request, connection):
        await connection.send(left.pop(0))

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_l32_the_anthropic_sdk_raises_the_overflow_in_anthropics_words(rig, stream):
    """A bad request, tried once, streamed or not."""
    async with rig(answering(openai_error(TOO_LONG))) as gate, claude(gate) as client:
        with pytest.raises(
            anthropic.BadRequestError, match="prompt is too long: 65537 tokens > 65536 maximum"
        ) as raised:
            await client.messages.create(model="m", max_tokens=5, messages=ASK, stream=stream)

        assert raised.value.body == raised.value.response.json()
        assert raised.value.request_id == raised.value.response.headers["x-request-id"]
        assert len(gate.backend.seen) == 1


async def test_l47_the_sdks_read_what_a_filter_said(rig):
    """Each raises its own error for the status, with the text in it."""
    page = (
        b"HTTP/1.1 403 X\r\nContent-Type: text/html\r\nContent-Length: 35\r\n\r\n<html><body>blocked by waf</p></html"
    )
    async with rig(answering(page)) as gate, claude(gate) as one, gpt(gate) as other:
        with pytest.raises(anthropic.PermissionDeniedError, match="blocked by waf"):
            await one.messages.create(model="m", max_tokens=5, messages=ASK)
        with pytest.raises(openai.PermissionDeniedError, match="blocked by waf"):
            await other.chat.completions.create(model="m", messages=ASK)


async def test_l15_the_sdks_come_back_when_they_were_told_to(rig):
    """A refusal without a word, then an answer: both try again by themselves."""
    chat = json_answer(b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[]}')
    mine = {"x-request-id": AT_ONCE}
    async with rig(in_turn(FULL, MESSAGE, FULL, chat)) as gate, claude(gate) as one, gpt(gate) as other:
        message = await one.messages.create(model="m", max_tokens=5, messages=ASK, extra_headers=mine)
        answer = await other.chat.completions.create(model="m", messages=ASK, extra_headers=mine)

        assert (message.usage.output_tokens, answer.id) == (1, "c")
        assert len(gate.backend.seen) == 4


async def test_l18_a_full_engine_is_a_503_for_the_responses_api(rig):
    """Tried again by the SDK, and by Codex, which takes a 429 for final."""
    async with rig(in_turn(FULL, RESPONSE)) as gate, gpt(gate) as client:
        answer = await client.responses.with_raw_response.create(
            model="m", input="hello", extra_headers={"x-request-id": AT_ONCE}
        )
        assert answer.parse().id == "resp_1"

        gate.backend.script = answering(FULL)
        with pytest.raises(openai.InternalServerError) as raised:
            await client.with_options(max_retries=0).responses.create(model="m", input="hello")
        assert raised.value.status_code == 503


async def test_l42_a_route_that_no_engine_has_is_not_tried_again(rig):
    """The SDKs raise at once, and say what is missing."""
    async with rig(answering(NOT_FOUND)) as gate, claude(gate) as one, gpt(gate) as other:
        with pytest.raises(anthropic.BadRequestError, match=r"vLLM has it since 0\.11\.1"):
            await one.messages.create(model="m", max_tokens=5, messages=ASK)
        with pytest.raises(openai.BadRequestError, match=r"vLLM has it since 0\.10"):
            await other.responses.create(model="m", input="hello")

        assert len(gate.backend.seen) == 2


async def test_l45_the_anthropic_sdk_gets_a_count_from_any_engine(rig):
    """Estimated where the engine has no such route."""
    async with rig(answering(NOT_FOUND)) as gate, claude(gate) as client:
        count = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x" * 4_000}])

        assert 1_000 <= count.input_tokens < 1_050


async def test_l44_the_sdks_may_ask_for_an_alias(rig):
    """Any name that the configuration knows, on every route; another one is not found, and asked for once."""
    models = {"aliases": {"claude-haiku-*": "m"}}
    async with rig(answering(MESSAGE), models=models) as gate, claude(gate) as one, gpt(gate) as other:
        await one.messages.create(model="claude-haiku-4-5", max_tokens=5, messages=ASK)
        assert json.loads(gate.backend.seen[0].body)["model"] == "m"

        with pytest.raises(anthropic.NotFoundError, match="There is: m"):
            await one.messages.create(model="claude-opus-4", max_tokens=5, messages=ASK)
        with pytest.raises(openai.NotFoundError, match="There is: m"):
            await other.chat.completions.create(model="gpt-5", messages=ASK)
        assert len(gate.backend.seen) == 1


async def test_l46_the_openai_sdk_sees_usage_only_where_it_asked(rig):
    """A stream that is counted for us alone has the chunks that it would have had."""
    piece = (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
        b'"choices":[{"index":0,"delta":{}}]}\n\n'
    )
    usage = (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
    )
    script = streaming(piece, piece, usage, b"data: [DONE]\n\n")
    async with rig(script, usage={"ask_engine": "on"}) as gate, gpt(gate) as client:
        plain = [chunk async for chunk in await client.chat.completions.create(model="m", messages=ASK, stream=True)]
        asked = await client.chat.completions.create(
            model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        counted = [chunk async for chunk in asked]

        assert [len(chunk.choices) for chunk in plain] == [1, 1]
        assert [chunk.usage is not None for chunk in counted] == [False, False, True]
        assert all(json.loads(seen.body)["stream_options"] == {"include_usage": True} for seen in gate.backend.seen)


@pytest.mark.parametrize("credentials", [{"auth_token": "good"}, {"api_key": "good"}])
async def test_l43_the_anthropic_sdk_may_send_its_key_either_way(rig, credentials):
    """`ANTHROPIC_AUTH_TOKEN` and `ANTHROPIC_API_KEY` end in different headers; neither reaches the engine."""
    async with (
        rig(answering(MESSAGE), auth={"keys": ["good"]}) as gate,
        anthropic.AsyncAnthropic(base_url=gate.proxy.url, timeout=20, **credentials) as client,
    ):
        await client.messages.create(model="m", max_tokens=5, messages=ASK)

        assert gate.backend.seen[0].header("authorization") is None
        assert gate.backend.seen[0].header("x-api-key") is None
