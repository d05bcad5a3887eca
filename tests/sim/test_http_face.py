"""The served engine against the real vLLM's shapes, words and manners."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.sim.shapes import events_shape, post, shape

SHAPES = json.loads((Path(__file__).parent / "vllm_0_32_shapes.json").read_text())
CHATS, MESSAGE, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
USER = [{"role": "user", "content": "hello there"}]
CHAT = {"model": "tiny", "messages": USER, "max_tokens": 5, "ignore_eos": True}
COMPLETION = {"model": "tiny", "prompt": "hello there", "max_tokens": 5, "ignore_eos": True}
MESSAGES = {"model": "tiny", "messages": USER, "max_tokens": 5}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
MESSAGES_TOOL = {"name": "get_weather", "input_schema": SCHEMA}
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def events(text):
    """The payloads of a stream's events, without the terminal one."""
    payloads = [event.split("data: ", 1)[1] for event in text.strip().split("\n\n")]
    return [json.loads(payload) for payload in payloads if payload != "[DONE]"]


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("chat", CHATS, CHAT),
        ("chat_stream", CHATS, CHAT | {"stream": True}),
        ("chat_stream_usage", CHATS, CHAT | {"stream": True} | USAGE),
        ("chat_stream_contusage", CHATS, CHAT | {"stream": True} | CONTINUOUS),
        ("compl", COMPLETIONS, COMPLETION),
        ("compl_stream", COMPLETIONS, COMPLETION | {"stream": True} | USAGE),
        ("msg", MESSAGE, MESSAGES),
        ("msg_stream", MESSAGE, MESSAGES | {"stream": True}),
        ("count", "/v1/messages/count_tokens", MESSAGES),
        ("tok", "/tokenize", {"model": "tiny", "prompt": "hello there"}),
    ],
)
async def test_shapes_are_those_of_vllm(http, engine, name, path, body):
    """Headers, keys and their order, kinds of values and the order of events equal the real vLLM's."""
    expected = SHAPES[name]
    status, headers, text = await post(http, engine, path, body)
    assert status == 200
    assert sorted(key.lower() for key in headers) == expected["headers"]
    assert headers["Content-Type"] == expected["content_type"]
    if "events" in expected:
        assert events_shape(text) == expected["events"]
    else:
        assert shape(json.loads(text)) == expected["body"]


async def test_models(http, engine):
    """The model list has the real one's shape, names every served name and the context."""
    async with http.get(engine.url + "/v1/models") as response:
        body = await response.json()
    assert shape(body) == SHAPES["models"]["body"]
    assert [model["id"] for model in body["data"]] == ["tiny", "claude-sonnet-4-5"]
    assert body["data"][0]["max_model_len"] == 126_976


async def test_streamed_tool_call_of_messages(http, engine):
    """A forced tool streams as the real one's, and its pieces make up the input."""
    body = MESSAGES | {"max_tokens": 99, "tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}, "stream": True}
    _, _, text = await post(http, engine, MESSAGE, body)
    assert events_shape(text) == SHAPES["mtool_s"]["events"]
    found = events(text)
    pieces = [event["delta"]["partial_json"] for event in found if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"ok": True}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


async def test_streamed_tool_call_of_chat(http, engine):
    """A named tool's events are the real one's but for the end token's, which the real one never reached."""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    body = CHAT | {"max_tokens": 99, "tools": [CHAT_TOOL], "tool_choice": choice, "stream": True}
    _, _, text = await post(http, engine, CHATS, body)
    assert events_shape(text)[:3] == SHAPES["tool_named_s"]["events"][:3]
    deltas = [event["choices"][0]["delta"] for event in events(text)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert "".join(call["function"].get("arguments", "") for call in calls) == '{"ok": true}'
    assert events(text)[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("choice", "content", "finish_reason"),
    [
        ("required", "hello", "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, "hello", "stop"),
        ("auto", "please Use the Tool now", "tool_calls"),
        ("none", "please use the tool now", None),
        ("auto", "hello", None),
    ],
)
async def test_when_a_tool_is_called(http, engine, choice, content, finish_reason):
    """A tool is called when forced, or when left free and the user says so; the finish reason is vLLM's."""
    body = {"messages": [{"role": "user", "content": content}], "tools": [CHAT_TOOL], "tool_choice": choice}
    _, _, text = await post(http, engine, CHATS, body)
    answer = json.loads(text)["choices"][0]
    if finish_reason is None:
        assert "tool_calls" not in answer["message"]
    else:
        assert answer["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"ok": true}'}
        assert answer["message"]["content"] is None
        assert answer["finish_reason"] == finish_reason


async def test_whole_tool_call_of_messages(http, engine):
    """A tool call that is not streamed is one block."""
    body = MESSAGES | {
        "max_tokens": 99,
        "tools": [MESSAGES_TOOL],
        "tool_choice": {"type": "tool", "name": "get_weather"},
    }
    _, _, text = await post(http, engine, MESSAGE, body)
    answer = json.loads(text)
    assert answer["stop_reason"] == "tool_use"
    (block,) = answer["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "get_weather", {"ok": True})


async def test_next_turn_finds_its_prefix(http, engine):
    """A second turn reports its cached tokens in both dialects' layouts, in whole blocks."""
    long = [{"role": "user", "content": "hello there " * 400}]
    _, _, text = await post(http, engine, CHATS, CHAT | {"messages": long, "max_tokens": 300})
    answer = json.loads(text)
    turn = [*long, answer["choices"][0]["message"], *USER]
    _, _, text = await post(http, engine, CHATS, CHAT | {"messages": turn})
    usage = json.loads(text)["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == answer["usage"]["total_tokens"] // 128 * 128
    messages = MESSAGES | {"messages": [{"role": one["role"], "content": one["content"]} for one in turn]}
    _, _, text = await post(http, engine, MESSAGE, messages)
    usage_there = json.loads(text)["usage"]
    assert usage_there["cache_read_input_tokens"] == cached
    assert usage_there["input_tokens"] == usage["prompt_tokens"] - cached


async def test_stream_says_what_the_whole_answer_says(http, engine):
    """Streamed or not, the same prompt gets the same words."""
    body = CHAT | {"max_tokens": 50}
    _, _, whole = await post(http, engine, CHATS, body)
    _, _, stream = await post(http, engine, CHATS, body | {"stream": True})
    text = "".join(event["choices"][0]["delta"]["content"] for event in events(stream))
    assert text == json.loads(whole)["choices"][0]["message"]["content"]


async def test_request_id_becomes_the_answers_id(http, engine):
    """A client's request id names the answer, and may be used again at once."""
    ids = {"X-Request-Id": "abc-123"}
    answers = await asyncio.gather(*(post(http, engine, CHATS, CHAT, headers=ids) for _ in range(3)))
    assert {json.loads(text)["id"] for _, _, text in answers} == {"chatcmpl-abc-123"}


async def test_wrong_method(http, engine):
    """A known path with another method names the right one."""
    async with http.get(engine.url + CHATS) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert await response.json() == {"detail": "Method Not Allowed"}


async def test_health_has_no_body(http, engine):
    """Health is an empty 200 without a content type."""
    async with http.get(engine.url + "/health") as response:
        assert response.status == 200
        assert "Content-Type" not in response.headers
        assert await response.read() == b""


async def test_big_max_tokens_is_cut_to_the_room(http, engine):
    """A cap that the context cannot hold beside the prompt is lowered, as vLLM lowers it."""
    status, _, _ = await post(http, engine, CHATS, {"messages": USER, "max_tokens": 126_970})
    assert status == 200


async def test_images_are_accepted(http, engine):
    """An image costs the same in both dialects."""
    data = "iVBORw0KGgo="
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]}]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    _, _, there = await post(http, engine, CHATS, CHAT | {"messages": chat})
    _, _, here = await post(http, engine, MESSAGE, MESSAGES | {"messages": messages})
    assert json.loads(there)["usage"]["prompt_tokens"] == json.loads(here)["usage"]["input_tokens"] > 1_024


async def test_echo(http, engine):
    """An echoed prompt precedes the completion, streamed or not."""
    body = COMPLETION | {"echo": True}
    _, _, whole = await post(http, engine, COMPLETIONS, body)
    _, _, stream = await post(http, engine, COMPLETIONS, body | {"stream": True})
    text = json.loads(whole)["choices"][0]["text"]
    assert text.startswith("hello there")
    assert "".join(event["choices"][0]["text"] for event in events(stream)) == text


async def until(condition):
    """Let the loop run until something holds; the test's own timeout is the limit."""
    while not condition():  # noqa: ASYNC110 - what is waited for belongs to the engine, which has no event for it
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_frees_its_place(http, slow_engine, stream):
    """When the client closes its connection, its request is out of the engine."""
    body = CHAT | {"stream": stream, "max_tokens": 100}
    asking = asyncio.get_running_loop().create_task(post(http, slow_engine, CHATS, body))
    await until(lambda: slow_engine.engine.running == 1)
    asking.cancel()
    await until(lambda: not slow_engine.engine.has_work)
    assert slow_engine.engine.pool.used_blocks == 0
    assert slow_engine.engine.counters.aborted == 1


async def test_headers_come_before_the_first_token(http, slow_engine):
    """A stream's headers are sent while its request still waits to be scheduled."""
    async with http.post(slow_engine.url + CHATS, json=CHAT | {"stream": True, "max_tokens": 9_000}) as response:
        assert response.status == 200
        assert slow_engine.engine.counters.generation <= 1


async def test_burst_waits_in_the_engine(http, slow_engine):
    """More requests than sequences: the metrics page shows who runs and who waits."""
    asking = [
        asyncio.get_running_loop().create_task(post(http, slow_engine, CHATS, CHAT | {"max_tokens": 100}))
        for _ in range(20)
    ]
    await until(lambda: slow_engine.engine.running == 16 and slow_engine.engine.waiting == 4)
    async with http.get(slow_engine.url + "/metrics") as response:
        page = await response.text()
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 16.0' in page
    assert 'vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0' in page
    assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 4.0' in page
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
