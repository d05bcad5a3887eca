import json

import pytest

from proxy.core.requests import Dialect, StreamEnd
from proxy.dialects.errors import error_body, stream_error_event


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (413, "request_too_large"), (429, "rate_limit_error"), (500, "api_error"),
        (502, "api_error"), (529, "overloaded_error"),
    ],
)  # fmt: skip
def test_anthropic_errors_carry_the_type_of_their_status(status, kind):
    """L33: the envelope and the type that Claude Code and the SDKs match on."""
    body = json.loads(error_body(Dialect.ANTHROPIC, status, "why", "code"))

    assert body == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_openai_errors_carry_message_type_and_code():
    """The shape that the OpenAI SDKs parse."""
    body = json.loads(error_body(Dialect.OPENAI, 503, "why", "refused_no_backend"))

    assert body == {"error": {"message": "why", "type": "server_error", "param": None, "code": "refused_no_backend"}}


@pytest.mark.parametrize(
    ("dialect", "end", "prefix"),
    [
        (Dialect.ANTHROPIC, StreamEnd.MESSAGE_STOP, b'event: error\ndata: {"type":"error"'),
        (Dialect.OPENAI, StreamEnd.DONE, b'data: {"error"'),
        (Dialect.OPENAI, StreamEnd.RESPONSE_COMPLETED, b'event: error\ndata: {"type":"error"'),
    ],
)
def test_a_broken_stream_is_told_in_one_complete_event(dialect, end, prefix):
    """The event is whole, in the dialect, and never the terminal one."""
    event = stream_error_event(dialect, end, "broke off", "upstream_error_reset")

    assert event.startswith(prefix)
    assert event.endswith(b"}\n\n")
    assert b"[DONE]" not in event
    assert b"message_stop" not in event
