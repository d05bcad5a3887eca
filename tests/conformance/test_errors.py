"""What goes wrong is said in the caller's dialect, with the right status, by whoever noticed it."""

import anthropic
import openai
import pytest

from tests.conformance.bodies import CHAT, COMPLETIONS, COUNT_TOKENS, GENERATING, MESSAGES, body_for, said
from tests.conformance.wire import Call, ask

LIMIT_BYTES = 32 * 2**20
ANTHROPIC_TYPES = {"invalid_request_error", "not_found_error", "request_too_large"}
CONTROL_PATHS = (
    "/inference/v1/generate",
    "/inference/v1/abort_requests",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/invocations",
)


def message_of(path, answer):
    """The sentence of an error that has the dialect's shape, whoever made it."""
    body = answer.json()
    assert isinstance(body.get("error"), dict), body
    if path.startswith(MESSAGES):
        assert body["type"] == "error"
        assert body["error"]["type"] in ANTHROPIC_TYPES
    assert body["error"]["type"]
    assert body["error"]["message"]
    return body["error"]["message"]


@pytest.mark.parametrize("path", [*GENERATING, COUNT_TOKENS])
def test_unknown_model(base_url, path):
    """A model that nobody serves is not found, and the answer names it."""
    answer = ask(base_url, path, body_for(path, "no-such-model"))
    assert answer.status == 404
    assert "no-such-model" in message_of(path, answer)


def test_unknown_model_in_the_sdks(openai_client, anthropic_client):
    """Both SDKs raise their own error for it."""
    with pytest.raises(openai.NotFoundError):
        openai_client.chat.completions.create(model="no-such-model", messages=said())
    with pytest.raises(anthropic.NotFoundError):
        anthropic_client.messages.create(model="no-such-model", messages=said(), max_tokens=3)


@pytest.mark.parametrize("path", [*GENERATING, COUNT_TOKENS])
@pytest.mark.parametrize("body", [b'{"model": "x", ', b"", b"[]", b"\xff\xfe{}", b"null"])
def test_body_that_is_no_json_object(base_url, path, body):
    """A broken body is a bad request."""
    answer = ask(base_url, path, body)
    assert answer.status == 400
    assert message_of(path, answer)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, COUNT_TOKENS])
def test_missing_field(base_url, model, path):
    """A body without its conversation is refused, and the answer says what is missing."""
    answer = ask(base_url, path, {"model": model})
    assert answer.status == 400
    assert ("prompt" if path == COMPLETIONS else "messages") in message_of(path, answer)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
def test_context_overflow(base_url, openai_client, model, path, is_stream):
    """A prompt longer than the context is refused before any stream begins, and the answer names the limit."""
    limit = openai_client.models.retrieve(model).max_model_len
    body = body_for(path, model, text="0 1 2 3 4 5 6 7 8 9 " * (limit * 6 // 20), stream=is_stream)
    answer = ask(base_url, path, body)
    assert answer.status == 400
    assert str(limit) in message_of(path, answer)
    if path == MESSAGES:
        assert message_of(path, answer).startswith("prompt is too long: ")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", [*GENERATING, COUNT_TOKENS])
def test_wrong_method(base_url, path, method):
    """A known path under another method is refused, and the answer says which method it takes."""
    answer = ask(base_url, path, method=method)
    assert answer.status == 405
    assert answer.header("allow") == "POST"
    assert message_of(path, answer)


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/messages/nothing", "/nothing", "/v1", "/v1/chat/completions/"])
def test_unknown_path(base_url, path):
    """A path that is not served is not found, in JSON, and never redirected."""
    answer = ask(base_url, path, {})
    assert answer.status == 404
    assert message_of(path, answer)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", CONTROL_PATHS)
def test_engine_control_is_out_of_reach(base_url, path, method):
    """No path that steers the engine is answered by it."""
    answer = ask(base_url, path, b"{}" if method == "POST" else None, method=method)
    assert answer.status == 404
    assert answer.header("server") != "uvicorn"


@pytest.mark.parametrize(
    "path", ["/v1/../sleep", "/v1/chat/../../sleep", "//v1/messages", "/v1/%6dessages", "/v1/messages;x"]
)
def test_other_spelling_of_a_path(base_url, path):
    """A path is taken as it is written: no other spelling reaches an engine."""
    answer = ask(base_url, path, {})
    assert answer.status in {400, 404}
    assert answer.header("server") != "uvicorn"


def test_head_of_the_root(base_url):
    """A probe of the address is answered at once and empty."""
    answer = ask(base_url, "/", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_body_above_the_limit(base_url, path):
    """A body above the limit is refused as too large before it is read to its end."""
    with Call(base_url, path, b"x", headers={"Content-Length": str(LIMIT_BYTES + 1)}) as call:
        answer = call.answer()
    assert answer.status == 413
    assert message_of(path, answer)
    if path == MESSAGES:
        assert answer.json()["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_body_above_the_limit_without_a_length(base_url, path):
    """A chunked body above the limit is refused while it is read."""
    with Call(base_url, path, iter([b"x" * 2**20] * 40)) as call:
        assert call.answer().status == 413


@pytest.mark.parametrize(("path", "field"), [(CHAT, "user"), (MESSAGES, "pad")])
def test_eight_megabytes_pass(base_url, model, path, field):
    """A body of eight megabytes reaches the engine whole and is answered."""
    answer = ask(base_url, path, body_for(path, model, max_tokens=2, **{field: "x" * 8_000_000}))
    assert answer.status == 200, answer.body[:300]
    assert answer.json()["usage"]


def test_eight_megabytes_are_all_there(base_url, model):
    """The last byte of a large body counts: without it the engine could not read the body at all."""
    broken = b'{"model": "%s", "pad": "%s"' % (model.encode(), b"x" * 8_000_000)
    answer = ask(base_url, CHAT, broken)
    assert answer.status == 400
    assert message_of(CHAT, answer)
