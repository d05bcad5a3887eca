import json

import pytest

from proxy.dialects import request_body, routes
from proxy.dialects.model_names import ModelNames
from proxy.dialects.rewriting import Rewriter

NAMES = ModelNames({"claude-*": "qwen"}, {"qwen"}.__contains__)


def rewritten(rewriter, path, body):
    """What becomes of a body on a route."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    route, _ = routes.match("POST", path)
    return rewriter.rewrite(route, body, request_body.read_body(route, body))


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"]
)
def test_l44_an_alias_rewrites_the_model_on_every_route(path):
    """The engine is asked for its own name; who looks at the answer's headers sees which."""
    done = rewritten(Rewriter(names=NAMES), path, b'{"x": 1,  "model": "claude-haiku-4", "y":2}')

    assert done.body == b'{"x": 1,  "model": "qwen", "y":2}'
    assert (done.facts.model, done.facts.fields["model"]) == ("qwen", "qwen")
    assert done.receipts == ((b"x-tidegate-model", b"qwen"),)


def test_l44_other_names_pass_untouched():
    """Not even the same bytes anew."""
    body = b'{"model":"other"}'
    done = rewritten(Rewriter(names=NAMES), "/v1/chat/completions", body)

    assert done.body is body
    assert done.receipts == ()
    assert rewritten(Rewriter(names=NAMES), "/v1/chat/completions", b"{}").body == b"{}"


def test_l44_a_forms_model_is_an_alias_too():
    """Transcriptions name it in a part of a form."""
    form = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nclaude-x\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="claude-x"\r\n\r\nclaude-x\r\n--b--\r\n'
    )
    done = rewritten(Rewriter(names=NAMES), "/v1/audio/transcriptions", form)

    assert done.body == form.replace(b"claude-x", b"qwen", 1)
    assert done.facts.model == "qwen"


def limits(**more):
    """A rewriter that clamps, for a context of 10,000 tokens."""
    return Rewriter(context_tokens={"m": 10_000}.get, **more)


def test_l35_a_limit_that_does_not_fit_is_lowered_and_said():
    """To what the context leaves beside the prompt, by our estimate."""
    body = {"model": "m", "max_tokens": 32_000, "messages": [{"role": "user", "content": "x" * 3_700}]}
    done = rewritten(limits(), "/v1/messages", body)
    lowered = json.loads(done.body)

    assert 8_800 < lowered["max_tokens"] < 9_000
    assert lowered == {**body, "max_tokens": lowered["max_tokens"]}
    assert done.facts.fields["max_tokens"] == lowered["max_tokens"]
    assert done.receipts == ((b"x-tidegate-max-tokens", b"%d" % lowered["max_tokens"]),)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/messages", "max_tokens"),
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_l35_under_whatever_name(path, field):
    """Each dialect has its own."""
    done = rewritten(limits(), path, {"model": "m", field: 10_000, "input": "hello", "messages": []})

    assert json.loads(done.body)[field] < 10_000


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "max_tokens": 9_000, "messages": [{"role": "user", "content": "hello"}]},
        {"model": "unlisted", "max_tokens": 99_000},
        {"max_tokens": 99_000},
        {"model": "m"},
        {"model": "m", "max_tokens": "many"},
        {"model": "m", "max_tokens": True},
        {"model": "m", "max_tokens": 9_000, "messages": [{"role": "user", "content": "x" * 60_000}]},
    ],
    ids=["fits", "unknown context", "no model", "no limit", "no number", "no number either", "the prompt is too long"],
)
def test_l35_everything_else_is_the_engines_business(body):
    """What fits, what cannot be judged, and what no limit would mend: the overflow is then said in words (L32)."""
    assert rewritten(limits(), "/v1/messages", body).receipts == ()


def test_l35_an_alias_and_a_clamp_together():
    """The context is that of the model that is served."""
    done = rewritten(limits(names=ModelNames({"c": "m"}, bool)), "/v1/messages", {"model": "c", "max_tokens": 99_000})

    assert json.loads(done.body)["model"] == "m"
    assert [name for name, _ in done.receipts] == [b"x-tidegate-model", b"x-tidegate-max-tokens"]


COUNTING = Rewriter(asks_usage=lambda: True)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_l46_a_stream_is_asked_to_count(path):
    """One field more; the rest byte for byte."""
    done = rewritten(COUNTING, path, b'{"stream": true, "x":1}')

    assert done.body == b'{"stream_options":{"include_usage":true},"stream": true, "x":1}'
    assert done.hides_usage


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"model":"m"}'),
        ("/v1/chat/completions", b'{"stream":true,"stream_options":{"include_usage":true}}'),
        ("/v1/chat/completions", b'{"stream":true,"stream_options":{"include_usage":false}}'),
        ("/v1/chat/completions", b'{"stream":true,"stream_options":null}'),
        ("/v1/messages", b'{"stream":true}'),
        ("/v1/responses", b'{"stream":true}'),
    ],
)
def test_l46_who_says_something_about_it_or_is_counted_anyway_is_left_alone(path, body):
    """Nothing is changed, and nothing hidden."""
    done = rewritten(COUNTING, path, body)

    assert (done.body, done.hides_usage) == (body, False)


def test_l46_not_while_it_may_do_harm():
    """`auto` says no as long as an engine is not known."""
    body = b'{"stream":true}'

    assert rewritten(Rewriter(asks_usage=lambda: False), "/v1/completions", body).body is body


@pytest.mark.parametrize("is_on", [True, False])
def test_l01_the_attribution_line_goes_where_a_setting_says_so(is_on):
    """Off, not a byte is touched."""
    line = "x-anthropic-billing-header: cch=a1b2c;"
    body = json.dumps({"system": [{"type": "text", "text": line}, {"type": "text", "text": "S"}]}).encode()
    done = rewritten(Rewriter(strips_attribution=is_on), "/v1/messages", body)

    assert (done.body == b'{"system": [ {"type": "text", "text": "S"}]}') is is_on
    assert (done.body is body) is not is_on
