"""Requests with tools and with images: what the engine makes of them reaches the client, and nothing less."""

import anthropic
import openai
import pytest

from tests.conformance.bodies import ANTHROPIC_TOOL, ONE_PIXEL_PNG, OPENAI_TOOL, PROMPT, body_for, said
from tests.conformance.wire import ask

OPENAI_IMAGE = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": PROMPT},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ONE_PIXEL_PNG}"}},
        ],
    }
]
ANTHROPIC_IMAGE = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": PROMPT},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ONE_PIXEL_PNG}},
        ],
    }
]


def test_openai_tools_are_part_of_the_prompt(openai_client, model):
    """A tool list reaches the engine: the prompt is longer with it."""
    asked = {"model": model, "messages": said(), "max_tokens": 4}
    bare = openai_client.chat.completions.create(**asked)
    armed = openai_client.chat.completions.create(tools=[OPENAI_TOOL], **asked)
    assert armed.usage.prompt_tokens > bare.usage.prompt_tokens + 10


def test_anthropic_tools_are_part_of_the_prompt(anthropic_client, model):
    """A tool list reaches the engine in the other dialect too."""
    bare = anthropic_client.messages.count_tokens(model=model, messages=said())
    armed = anthropic_client.messages.count_tokens(model=model, messages=said(), tools=[ANTHROPIC_TOOL])
    assert armed.input_tokens > bare.input_tokens + 10


def test_openai_forced_tool(openai_client, model):
    """A forced choice makes a streamed call of exactly that tool, its arguments in pieces."""
    stream = openai_client.chat.completions.create(
        model=model,
        messages=said(),
        tools=[OPENAI_TOOL],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=40,
        temperature=0,
        stream=True,
    )
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function.name] == ["get_weather"]
    assert "".join(call.function.arguments or "" for call in calls)


def test_anthropic_forced_tool(anthropic_client, model):
    """A forced choice makes a tool_use block of exactly that tool."""
    events = list(
        anthropic_client.messages.create(
            model=model,
            messages=said(),
            tools=[ANTHROPIC_TOOL],
            tool_choice={"type": "tool", "name": "get_weather"},
            max_tokens=40,
            stream=True,
        )
    )
    blocks = [event.content_block for event in events if event.type == "content_block_start"]
    assert [block.name for block in blocks if block.type == "tool_use"] == ["get_weather"]


def test_server_tool_without_a_schema(base_url, direct_url, model):
    """L40: a tool that only Anthropic's servers have is the engine's to refuse, in its own words."""
    body = body_for("/v1/messages", model, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    direct, through = ask(direct_url, "/v1/messages", body), ask(base_url, "/v1/messages", body)
    assert through.status == direct.status
    if direct.status != 200:
        assert through.json()["type"] == "error"
        assert through.json()["error"]["message"] == direct.json()["error"]["message"]


def test_openai_image(openai_client, endpoint, direct_url, model):
    """An image passes; an engine that cannot see refuses it in its own words."""
    asked = {"model": model, "messages": OPENAI_IMAGE, "max_tokens": 4}
    if endpoint.is_simulated:
        assert openai_client.chat.completions.create(**asked).choices[0].message.content
        return
    direct = ask(direct_url, "/v1/chat/completions", asked)
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.chat.completions.create(**asked)
    assert caught.value.response.content == direct.body
    assert "multimodal" in caught.value.message


def test_anthropic_image(anthropic_client, endpoint, direct_url, model):
    """An image in Anthropic's form passes; an engine that cannot see refuses it in its own words."""
    asked = {"model": model, "messages": ANTHROPIC_IMAGE, "max_tokens": 4}
    if endpoint.is_simulated:
        assert anthropic_client.messages.create(**asked).content[0].text
        return
    direct = ask(direct_url, "/v1/messages", asked)
    with pytest.raises(anthropic.BadRequestError) as caught:
        anthropic_client.messages.create(**asked)
    assert caught.value.response.json()["error"]["message"] == direct.json()["error"]["message"]
    assert "multimodal" in caught.value.message
