"""An answer through the proxy is the engine's own answer, byte for byte, ids and timestamps aside."""

import pytest

from tests.conformance.bodies import ANTHROPIC_TOOL, CHAT, COMPLETIONS, GENERATING, MESSAGES, OPENAI_TOOL, body_for
from tests.conformance.golden import end_to_end_headers, normalised, outline, said_in
from tests.conformance.wire import Answer, ask

# A very busy engine may say a whole short answer in its last event. A proxy that changes bytes does so every time.
STREAM_ATTEMPTS = 6

USAGE = {"stream_options": {"include_usage": True}}
FORCED = {
    "max_tokens": 60,
    "tools": [OPENAI_TOOL],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
}
FORCED_ANTHROPIC = {"max_tokens": 60, "tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}


def assert_same_head(through: Answer, direct: Answer) -> None:
    """Status and end-to-end headers are the engine's."""
    assert through.status == direct.status
    assert end_to_end_headers(through) == end_to_end_headers(direct)


@pytest.mark.parametrize("path", GENERATING)
def test_whole_answer_is_the_engines(base_url, direct_url, model, path):
    """A non-streamed answer keeps status, headers and bytes."""
    body = body_for(path, model)
    direct, through = ask(direct_url, path, body), ask(base_url, path, body)
    assert direct.status == 200, direct.body
    assert_same_head(through, direct)
    assert normalised(through.body) == normalised(direct.body)
    assert through.header("content-length") == str(len(through.body))


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {}),
        (CHAT, USAGE),
        (CHAT, FORCED),
        (COMPLETIONS, {}),
        (COMPLETIONS, USAGE),
        (MESSAGES, {}),
        (MESSAGES, FORCED_ANTHROPIC),
    ],
    ids=["chat", "chat-usage", "chat-tool", "completions", "completions-usage", "messages", "messages-tool"],
)
def test_stream_is_the_engines(base_url, direct_url, model, path, more):
    """A stream keeps status, headers and bytes, its last event included."""
    body = body_for(path, model, stream=True, **more)
    for _ in range(STREAM_ATTEMPTS):
        direct, through = ask(direct_url, path, body), ask(base_url, path, body)
        assert_same_head(through, direct)
        if outline(through.body) == outline(direct.body):
            break
    assert direct.status == 200, direct.body
    assert outline(through.body) == outline(direct.body)
    assert said_in(through.body) == said_in(direct.body) != b""


def test_count_is_the_engines(base_url, direct_url, model):
    """A token count is the engine's own answer, to the byte."""
    body = body_for("/v1/messages/count_tokens", model)
    direct, through = (ask(url, "/v1/messages/count_tokens", body) for url in (direct_url, base_url))
    assert direct.status == 200, direct.body
    assert_same_head(through, direct)
    assert through.body == direct.body


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"messages": "not a list"}),
        (CHAT, {"temperature": -3}),
        (CHAT, {"max_tokens": 100_000_000}),
        (COMPLETIONS, {"temperature": -3, "stream": True}),
        (MESSAGES, {"max_tokens": -1}),
        (MESSAGES, {"messages": [{"role": "wizard", "content": "Hello"}]}),
    ],
    ids=["chat-messages", "chat-temperature", "chat-max-tokens", "completions-stream", "messages-max", "messages-role"],
)
def test_engines_refusal_is_handed_on(base_url, direct_url, model, path, more):
    """What the engine itself refuses is refused in the engine's words."""
    body = body_for(path, model, **more)
    direct, through = ask(direct_url, path, body), ask(base_url, path, body)
    assert direct.status != 200
    assert_same_head(through, direct)
    if path == MESSAGES:  # the words are the engine's, the shape is Anthropic's
        error = through.json()["error"]
        assert (through.json()["type"], error["type"]) == ("error", "invalid_request_error")
        assert error["message"] == direct.json()["error"]["message"]
    else:
        assert normalised(through.body) == normalised(direct.body)


@pytest.mark.parametrize("path", GENERATING)
def test_stream_arrives_in_pieces(base_url, model, path):
    """The first event is here long before the last: nothing gathers a stream."""
    for _ in range(STREAM_ATTEMPTS):  # short of CPU, an engine's own server sends in bursts
        answer = ask(base_url, path, body_for(path, model, max_tokens=600, stream=True))
        assert answer.status == 200, answer.body
        if len(answer.arrivals_s) > 5:
            break
    assert len(answer.arrivals_s) > 5
    assert answer.arrivals_s[0] < 0.8 * answer.arrivals_s[-1]


@pytest.mark.usefixtures("has_responses")
def test_responses_answer_is_the_engines(base_url, direct_url, model):
    """A Responses answer keeps status, headers and bytes."""
    body = body_for("/v1/responses", model)
    direct, through = ask(direct_url, "/v1/responses", body), ask(base_url, "/v1/responses", body)
    assert direct.status == 200, direct.body
    assert_same_head(through, direct)
    assert normalised(through.body) == normalised(direct.body)


def test_text_of_any_script_survives(base_url, direct_url, model):
    """Characters beyond ASCII reach the engine as they were sent: both ways count the same tokens."""
    text = "Grüße, 世界, Привет 👋🏽 \u2028 \U0001f9ff"
    body = body_for("/v1/messages/count_tokens", model, text=text)
    direct, through = (ask(url, "/v1/messages/count_tokens", body).json() for url in (direct_url, base_url))
    assert direct["input_tokens"] > len(text) / 8
    assert through == direct


def test_query_reaches_the_engine(endpoint, base_url, model):
    """The query string of a request is the engine's too."""
    if endpoint.engine_log is None:
        pytest.skip("the engine's access log is not known")
    target = "/v1/messages?beta=true&mark=q%2Fx%20y"
    assert ask(base_url, target, body_for(MESSAGES, model, max_tokens=1)).status == 200
    assert f'"POST {target} HTTP/1.1" 200' in endpoint.engine_log.read_text(errors="replace")
