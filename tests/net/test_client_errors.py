"""What a backend says instead of an answer, as each client gets it: shape, status, when to come back."""

import json
import re

import pytest

from tests.fakes.backend import answering, json_answer
from tests.net.conftest import chat
from tests.net.test_admission import Engine, admitting, asking, header, started
from tests.net.test_upstream_faults import error_of, status_of

PATHS = [b"/v1/messages", b"/v1/chat/completions", b"/v1/responses"]
TOO_LONG = (
    "This model's maximum context length is 65536 tokens. However, your prompt contains at least 65537 input tokens, "
    "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)
NO_MODEL = b'{"type":"error","error":{"type":"NotFoundError","message":"The model `x` does not exist."}}'


def openai_error(message, status=400):
    """An error as vLLM words it on OpenAI's routes."""
    body = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
    return json_answer(json.dumps(body).encode(), status)


def body_of(answer):
    """What comes after the head."""
    return answer.partition(b"\r\n\r\n")[2]


async def test_l32_a_prompt_too_long_is_said_so_that_claude_code_compacts(rig):
    """400, Anthropic's envelope and words, the engine's text after them; on OpenAI's route it passes as it is."""
    async with rig(answering(openai_error(TOO_LONG))) as gate:
        answer = await gate.raw(chat(path=b"/v1/messages"))
        other = await gate.raw(chat())

        assert (status_of(answer), error_of(answer)["type"]) == (400, "invalid_request_error")
        assert json.loads(body_of(answer))["type"] == "error"
        assert error_of(answer)["message"].startswith("prompt is too long: 65537 tokens > 65536 maximum")
        assert TOO_LONG in error_of(answer)["message"]
        assert body_of(other) == body_of(openai_error(TOO_LONG))
        assert gate.outcomes() == {"backend_rejected": 2}


async def test_l32_too_large_a_limit_is_said_so_that_claude_code_asks_for_less():
    """The prompt's size is our estimate, since the engine did not count it."""
    message = "max_completion_tokens=100000 cannot be greater than max_model_len=65536. Please request fewer."
    async with admitting(answering(openai_error(message))) as gate:
        answer = await gate.raw(asking("one", path=b"/v1/messages"))

        found = re.match(
            r"input length and `max_tokens` exceed context limit: (\d+) \+ 100000 > 65536 \(",
            error_of(answer)["message"],
        )
        assert found is not None
        assert 40_000 < int(found[1]) < 46_000


@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_l33_vllms_validation_errors_get_anthropics_envelope(rig, stream):
    """Streamed or not, with the id that Anthropic's clients look for."""
    async with rig(answering(openai_error("1 validation error:\n  {'loc': 'body.max_tokens'}"))) as gate:
        body = b'{"model":"m","stream":%b}' % stream
        answer = await gate.raw(chat(body, path=b"/v1/messages", extra=b"x-request-id: abc\r\n"))

        assert json.loads(body_of(answer)) == {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "1 validation error:\n  {'loc': 'body.max_tokens'}"},
        }
        assert (header(answer, b"request-id"), header(answer, b"x-request-id")) == (b"abc", b"abc")
        assert header(answer, b"x-should-retry") == b"false"


async def test_l02_the_engines_wording_is_kept_to_the_letter(rig):
    """Claude Code gives a feature up when it recognises the words of the error."""
    words = "Input should be 'user' or 'assistant' [\"messages\", 3, \"role\"] — “system” é"
    async with rig(answering(openai_error(words))) as gate:
        assert error_of(await gate.raw(chat(path=b"/v1/messages")))["message"] == words


async def test_l33_a_body_in_the_right_shape_is_not_touched(rig):
    """Byte for byte, odd spaces and further fields included."""
    body = b'{ "type":"error",  "error":{"type":"invalid_request_error","message":"x","more":[1]} }'
    async with rig(answering(json_answer(body, 400))) as gate:
        assert body_of(await gate.raw(chat(path=b"/v1/messages"))) == body


@pytest.mark.parametrize("path", PATHS)
async def test_l47_html_from_a_filter_in_front_is_wrapped(rig, path):
    """The status is kept, the text can be read, the markup is gone."""
    page = b"<html><head><title>403 Forbidden</title></head><body><h1>Blocked</h1></body></html>"
    raw = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)
    async with rig(answering(raw)) as gate:
        answer = await gate.raw(chat(path=path))

        assert status_of(answer) == 403
        assert header(answer, b"content-type") == b"application/json"
        assert "answered 403: 403 Forbidden: Blocked" in error_of(answer)["message"]
        assert ("type" in json.loads(body_of(answer))) == (path == b"/v1/messages")
        await gate.until(lambda: '"request.finished"' in gate.log.getvalue())
        assert "Blocked" not in gate.log.getvalue()


@pytest.mark.parametrize("path", PATHS)
async def test_an_empty_failure_is_said_in_words(rig, path):
    """A crash that leaves only a status line."""
    async with rig(answering(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")) as gate:
        answer = await gate.raw(chat(path=path))

        assert status_of(answer) == 500
        assert error_of(answer)["message"] == "The engine answered 500 and said no more."
        assert gate.outcomes() == {"upstream_error_status": 1}


async def test_l44_a_model_that_the_engine_does_not_know_is_not_found(rig):
    """In Anthropic's words, and not to be tried again."""
    async with rig(answering(json_answer(NO_MODEL, 404)), models={"unknown": "forward"}) as gate:
        answer = await gate.raw(chat(b'{"model":"x"}', path=b"/v1/messages"))

        assert (status_of(answer), error_of(answer)["type"]) == (404, "not_found_error")
        assert header(answer, b"x-should-retry") == b"false"


@pytest.mark.parametrize("path", PATHS)
async def test_l44_a_model_that_nobody_lists_is_refused_at_once(rig, path):
    """No engine is asked, nobody waits for room, and the answer says what there is."""
    async with rig(answering(json_answer(b"{}"))) as gate:
        answer = await gate.raw(chat(b'{"model":"x"}', path=path))

        assert (status_of(answer), error_of(answer)["type"]) == (404, "not_found_error")
        assert "The model `x` is not served here. There is: m." in error_of(answer)["message"]
        assert header(answer, b"x-should-retry") == b"false"
        assert gate.backend.seen == []
        assert gate.outcomes() == {"refused_not_found": 1}


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize(
    ("path", "status", "becomes"),
    [
        (b"/v1/responses", 429, 503),
        (b"/v1/responses", 503, 503),
        (b"/v1/messages", 429, 429),
        (b"/v1/messages", 503, 503),
        (b"/v1/chat/completions", 429, 429),
    ],
)
async def test_l18_a_full_backend_by_route(rig, path, status, becomes, stream):
    """L20 too: streamed or not it is the same status, with a whole number of seconds to wait."""
    full = json_answer(b"full", status, b"Retry-After: 3600\r\n")
    async with rig(answering(full)) as gate:
        answer = await gate.raw(chat(b'{"model":"m","stream":%b}' % stream, path=path))

        assert status_of(answer) == becomes
        assert 1 <= int(header(answer, b"retry-after") or 0) <= 60
        assert "full" in error_of(answer)["message"]


@pytest.mark.parametrize(("path", "status"), [(b"/v1/chat/completions", 503), (b"/v1/messages", 429)])
async def test_l18_the_status_of_our_own_refusal_can_be_chosen(path, status):
    """On the routes whose clients take either."""
    engine = Engine()
    async with admitting(engine, queue={"overload_status": 503}) as gate:
        await started(gate, engine, "one", "two")
        answer = await gate.raw(asking("late", path=path, extra=b"x-stainless-timeout: 1\r\n"))
        for session in ("one", "two"):
            engine.end(session)

        assert status_of(answer) == status
