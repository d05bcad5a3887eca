"""The official clients of both dialects accept the served engine."""

import anthropic
import openai
import pytest

USER = [{"role": "user", "content": "please use the tool"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture
async def openai_client(engine):
    """OpenAI's client."""
    async with openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropic_client(engine):
    """Anthropic's client."""
    async with anthropic.AsyncAnthropic(base_url=engine.url, api_key="none", max_retries=0) as client:
        yield client


async def test_openai_stream_with_a_tool(openai_client):
    """Tool call pieces add up in OpenAI's client, and usage comes last."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    arguments, usage, reason = "", None, None
    stream = await openai_client.chat.completions.create(
        model="tiny", messages=USER, tools=[tool], stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                arguments += call.function.arguments or ""
    assert (arguments, reason) == ('{"city": "example"}', "tool_calls")
    assert usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_openai_refusal(openai_client):
    """An unknown model is the client's own kind of error."""
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await openai_client.chat.completions.create(model="nope", messages=USER)


async def test_anthropic_stream(anthropic_client):
    """Anthropic's client assembles a streamed message."""
    messages = [{"role": "user", "content": "hello"}]
    async with anthropic_client.messages.stream(model="tiny", max_tokens=30, messages=messages) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert final.content[0].text == text
    assert final.usage.output_tokens == 30
    assert final.stop_reason == "max_tokens"


async def test_anthropic_tool_and_count(anthropic_client):
    """A tool call arrives parsed, and the prompt costs what counting said."""
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    counted = await anthropic_client.messages.count_tokens(model="tiny", messages=USER, tools=tools)
    message = await anthropic_client.messages.create(model="tiny", max_tokens=99, messages=USER, tools=tools)
    assert message.content[0].input == {"city": "example"}
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens == counted.input_tokens


async def test_anthropic_refusal(anthropic_client):
    """An unknown model is the client's own kind of error."""
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        await anthropic_client.messages.create(model="nope", max_tokens=9, messages=USER)
