import pytest

from proxy.core.errors import Refusal
from proxy.dialects import routes
from proxy.dialects.request_body import read_body

CHAT, _ = routes.match("POST", "/v1/chat/completions")
AUDIO, _ = routes.match("POST", "/v1/audio/transcriptions")


def steering(route, body):
    """What steers a request, without the whole of its body."""
    facts = read_body(route, body)
    return facts.model, facts.is_stream, facts.previous_response_id


def test_the_steering_fields_are_read():
    """Model, stream and the stored response are found among anything else."""
    body = b'{"model": "m", "stream": true, "previous_response_id": "resp_1", "unknown": [1]}'

    assert ("m", True, "resp_1") == steering(CHAT, body)


def test_fields_of_another_type_count_as_absent():
    """The engine, not the proxy, tells the client that a field has the wrong type."""
    body = b'{"model": ["m"], "stream": "true", "previous_response_id": 7}'

    assert (None, False, None) == steering(CHAT, body)


def test_the_last_of_two_models_counts():
    """A duplicate key means what it means to the engine: the last one."""
    assert read_body(CHAT, b'{"model": "a", "model": "b"}').model == "b"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{} {}", b"[]", b"null", b'"text"', b"7", b'{"a": NaN}', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}",
        b'{"model": "\xff"}', b'{"a": "\\ud800"}', b"[" * 200_000, b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_one_json_object_is_refused(body):
    """Broken, doubled, nested without end or not UTF-8: a 400 that repeats nothing of it."""
    with pytest.raises(Refusal) as refused:
        read_body(CHAT, body)

    assert refused.value.status == 400
    assert len(refused.value.message) < 120


def test_a_form_tells_its_model():
    """Audio routes are forms; the model is one of their fields."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\xff\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
    )

    assert read_body(AUDIO, body).model == "whisper"


def test_a_form_without_a_model_passes():
    """What a form lacks is for the engine to say."""
    assert steering(AUDIO, b"--b--\r\n") == (None, False, None)
