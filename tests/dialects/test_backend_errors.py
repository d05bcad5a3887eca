import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.requests import Dialect
from proxy.dialects.backend_errors import in_dialect, lacks_route

FIXTURES = json.loads((Path(__file__).parents[1] / "fixtures" / "vllm-0.32.0" / "errors.json").read_text("utf-8"))
REFUSALS = json.loads((Path(__file__).parents[1] / "sim" / "vllm_0_32_refusals.json").read_text("utf-8"))
REAL = [(one["path"], one["status"], one["body"]) for one in FIXTURES.values()]
REAL += [(one["path"], one["status"], one["answer"]) for one in REFUSALS]

ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error", 529: "overloaded_error",
}  # fmt: skip
"""L33's own list."""
HTML = (
    b"<!DOCTYPE html><html><head><title>403 Forbidden</title><style>p{}</style></head>"
    b"<body><script>alert(1)</script><h1>Forbidden</h1><p>Request&nbsp;blocked &amp; logged.</p></body></html>"
)


def mended(dialect, status, body, *, tokens=0):
    """The error that the client gets, parsed; None when the body was left alone."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    new = in_dialect(dialect, status, body, tokens)
    return None if new is None else json.loads(new.body)


@pytest.mark.parametrize("status", sorted(ANTHROPIC_TYPES))
def test_l33_every_error_gets_anthropics_envelope_and_type(status):
    """vLLM's validation errors come in OpenAI's shape, whatever the route."""
    message = "1 validation error:\n  {'loc': 'body.max_tokens'}"
    body = {"error": {"message": message, "type": "Bad Request", "param": None, "code": status}}

    assert mended(Dialect.ANTHROPIC, status, body) == {
        "type": "error",
        "error": {"type": ANTHROPIC_TYPES[status], "message": message},
    }


@pytest.mark.parametrize("kind", sorted({*ANTHROPIC_TYPES.values(), "timeout_error", "billing_error"}))
def test_l33_a_body_in_anthropics_shape_is_not_touched(kind):
    """Whatever its type, as long as it is one of Anthropic's, and whatever stands beside it."""
    body = {"type": "error", "request_id": "r", "error": {"type": kind, "message": "as it was", "details": [1]}}

    assert mended(Dialect.ANTHROPIC, 400, body) is None


def test_l33_of_vllms_envelope_only_the_type_is_changed():
    """The words are matched by Claude Code, so they stay; so does what it does not know."""
    error = {"type": "NotFoundError", "message": "The model `x` does not exist."}

    assert mended(Dialect.ANTHROPIC, 404, {"type": "error", "error": error, "x": 1}) == {
        "type": "error", "error": {**error, "type": "not_found_error"}, "x": 1
    }  # fmt: skip


@pytest.mark.parametrize(("path", "status", "body"), REAL, ids=lambda one: str(one)[:40])
def test_l33_what_the_real_vllm_said_reaches_both_dialects(path, status, body):
    """Recorded answers of vLLM 0.32: the shape of the dialect, the message whole."""
    said = body["error"]["message"] if "error" in body else body["detail"]
    as_anthropic = mended(Dialect.ANTHROPIC, status, body) or body
    as_openai = mended(Dialect.OPENAI, status, body) or body

    assert as_anthropic["type"] == "error"
    assert as_anthropic["error"]["type"] == ANTHROPIC_TYPES.get(status, "invalid_request_error")
    assert said in as_anthropic["error"]["message"]
    assert said in as_openai["error"]["message"]
    if path.startswith("/v1/chat") and "error" in body:
        assert mended(Dialect.OPENAI, status, body) is None


def test_l32_context_overflow_is_worded_for_claude_code_only_on_anthropics_routes():
    """400, invalid_request_error, Anthropic's words with the engine's after them; OpenAI's clients get the engine's."""
    shapes = FIXTURES["messages-prompt-too-long"]["body"], FIXTURES["chat-prompt-too-long"]["body"]
    for body in shapes:
        error = mended(Dialect.ANTHROPIC, 400, body)["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith("prompt is too long: 65537 tokens > 65536 maximum")
        assert body["error"]["message"] in error["message"]
    assert mended(Dialect.OPENAI, 400, shapes[1]) is None


def test_l32_only_the_output_overflows():
    """The two numbers that let Claude Code ask for less; the engine did not count the prompt, so ours is taken."""
    error = mended(Dialect.ANTHROPIC, 400, FIXTURES["messages-max-tokens-too-large"]["body"], tokens=1_234)["error"]

    assert error["message"].startswith(
        "input length and `max_tokens` exceed context limit: 1234 + 10000000 > 65536 (the engine said: max_completion"
    )


def test_l32_words_of_a_failure_are_not_an_overflow():
    """A 500 that quotes the same sentence is no reason to make the conversation shorter."""
    body = FIXTURES["messages-prompt-too-long"]["body"]

    assert mended(Dialect.ANTHROPIC, 500, body)["error"]["message"] == body["error"]["message"]


@pytest.mark.parametrize("dialect", Dialect)
def test_l47_html_is_wrapped(dialect):
    """What a web filter answers is said in a sentence, without its markup."""
    error = mended(dialect, 403, HTML)["error"]

    assert error["type"] == "permission_error"
    assert error["message"] == (
        "The engine, or a server in front of it, answered 403: 403 Forbidden: Forbidden Request blocked & logged."
    )


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "The engine answered 502 and said no more."),
        (b"upstream connect error", "answered 502: upstream connect error"),
        (b"\xff\x00\x1b[31mred", "answered 502: \ufffd  [31mred"),
        (b'"just a string"', 'answered 502: "just a string"'),
        (b'{"error":"no healthy upstream"}', "answered 502: no healthy upstream"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"detail":[{"loc":["body","x"],"msg":"field required"}]}', '"msg":"field required"'),
        (b'{"object":"error","message":"old vLLM","type":"BadRequestError","param":null,"code":400}', "old vLLM"),
        (b'{"error":{"message":null}}', '{"error":{"message":null}}'),
        (b'{"error":{"message":"  "}}', '{"error":{"message":"  "}}'),
    ],
)
def test_every_other_shape_is_wrapped(dialect, body, says):
    """Plain text, broken bytes, older engines, other frameworks: the caller's shape with the original text."""
    parsed = mended(dialect, 502, body)

    assert says in parsed["error"]["message"]
    assert parsed["error"]["type"]
    assert (parsed.get("type") == "error") == (dialect is Dialect.ANTHROPIC)


def test_older_vllms_details_stay_in_openais_shape():
    """Type, parameter and code are the engine's own."""
    body = {"object": "error", "message": "no", "type": "BadRequestError", "param": "top_p", "code": 400}

    assert mended(Dialect.OPENAI, 400, body) == {
        "error": {"message": "no", "type": "BadRequestError", "param": "top_p", "code": 400}
    }


def test_an_anthropic_shape_on_an_openai_route_is_mended_too():
    """An engine that answers everybody alike is understood by everybody."""
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}

    assert mended(Dialect.OPENAI, 503, body)["error"] == {
        "message": "full", "type": "overloaded_error", "param": None, "code": None
    }  # fmt: skip


def test_a_text_without_end_is_cut():
    """A message stays a message."""
    error = mended(Dialect.ANTHROPIC, 500, b"x" * 100_000)["error"]

    assert 4_000 < len(error["message"]) < 4_200
    assert error["message"].endswith("[...]")


@given(st.sampled_from(list(Dialect)), st.integers(400, 599), st.binary(max_size=300))
def test_any_bytes_at_all_become_an_error_of_the_dialect(dialect, status, body):
    """Nothing that a backend sends can break it, and what is in shape stays."""
    new = in_dialect(dialect, status, body, 0)
    parsed = json.loads(body if new is None else new.body)

    assert isinstance(parsed["error"]["message"], str)
    assert new is None or in_dialect(dialect, status, new.body, 0) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "type", "message", "detail", "code", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.sampled_from(list(Dialect)), JSON)
def test_any_json_at_all_becomes_an_error_of_the_dialect(dialect, value):
    """Odd values in the usual places included."""
    body = json.dumps(value).encode()
    new = in_dialect(dialect, 400, body, 0)
    parsed = json.loads(body if new is None else new.body)

    assert isinstance(parsed["error"]["message"], str)
    assert dialect is Dialect.OPENAI or (parsed["type"], isinstance(parsed["error"]["type"], str)) == ("error", True)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"detail":"Not Found"}'),
        (405, b'{"detail":"Method Not Allowed"}'),
        (404, b'{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}'),
        (405, b'{"error":{"message":"Method Not Allowed","type":"Method Not Allowed","param":null,"code":405}}'),
    ],
)
def test_l42_a_route_that_is_not_there(status, body):
    """The engine's web framework says so in two words, in vLLM's error object or without."""
    assert lacks_route(status, body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}'),
        (404, b'{"type":"error","error":{"type":"NotFoundError","message":"The model `x` does not exist."}}'),
        (404, b'{"object":"error","message":"The model `x` does not exist.","type":"NotFoundError","code":404}'),
        (404, b'{"error":{"message":"Response with id \'resp_1\' not found.","code":404}}'),
        (404, b'{"error":"model \'x\' not found"}'),
        (404, b""),
        (404, b"404 page not found"),
        (404, HTML),
        (404, b"[]"),
        (404, b'{"detail":{"x":"Not Found"}}'),
        (400, b'{"detail":"Not Found"}'),
        (500, b""),
        (503, b"no healthy upstream"),
    ],
)
def test_l42_a_model_or_a_response_that_is_not_there_is_something_else(status, body):
    """So is what a server in between says while an engine is being replaced: the route stays in use."""
    assert not lacks_route(status, body)
