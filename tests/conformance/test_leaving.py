"""A client that leaves, whenever it does, leaves no work behind: the engine's own count returns to nothing."""

import pytest

from tests.conformance.bodies import GENERATING, body_for
from tests.conformance.wire import Call, eventually, unfinished_requests

GONE_WITHIN_S = 2.0
STARTED_WITHIN_S = 10.0
ENDLESS_TOKENS = 20_000
LONG_PROMPT = "one two three four five six seven eight nine ten " * 150


@pytest.fixture(autouse=True)
def _idle_engine(direct_url):
    """Each case begins and ends with an engine that does nothing."""
    assert eventually(lambda: unfinished_requests(direct_url) == 0, within_s=STARTED_WITHIN_S)


def is_idle(direct_url):
    """Whether the engine has nothing to do, in two looks one after the other."""
    return unfinished_requests(direct_url) == 0 and unfinished_requests(direct_url) == 0


@pytest.mark.parametrize("path", GENERATING)
def test_before_the_head(base_url, direct_url, model, path):
    """Leaving while a whole answer is being made, before any byte of it, ends the work."""
    with Call(base_url, path, body_for(path, model, max_tokens=ENDLESS_TOKENS)):
        assert eventually(lambda: unfinished_requests(direct_url) == 1, within_s=STARTED_WITHIN_S)
    assert eventually(lambda: is_idle(direct_url), within_s=GONE_WITHIN_S)


@pytest.mark.parametrize("path", GENERATING)
def test_after_the_head_of_a_stream(base_url, direct_url, model, path):
    """Leaving during the prefill, after the stream's head and before its first event, ends the work."""
    body = body_for(path, model, text=LONG_PROMPT, max_tokens=ENDLESS_TOKENS, stream=True)
    with Call(base_url, path, body) as call:
        assert call.head().status == 200
    assert eventually(lambda: is_idle(direct_url), within_s=GONE_WITHIN_S)


@pytest.mark.parametrize("path", GENERATING)
def test_in_the_middle_of_a_stream(base_url, direct_url, model, path):
    """Leaving after some events of a stream ends the work."""
    with Call(base_url, path, body_for(path, model, max_tokens=ENDLESS_TOKENS, stream=True)) as call:
        for _, piece in zip(range(5), call.pieces(), strict=False):
            assert piece
        assert eventually(lambda: unfinished_requests(direct_url) == 1, within_s=STARTED_WITHIN_S)
    assert eventually(lambda: is_idle(direct_url), within_s=GONE_WITHIN_S)


@pytest.mark.parametrize("path", GENERATING)
def test_at_once(base_url, direct_url, model, path):
    """Leaving right after the request was sent leaves nothing running, however far it had come."""
    for _ in range(5):
        with Call(base_url, path, body_for(path, model, max_tokens=ENDLESS_TOKENS)):
            pass
    assert eventually(lambda: is_idle(direct_url), within_s=GONE_WITHIN_S)


@pytest.mark.parametrize("path", GENERATING)
def test_before_the_body_is_whole(base_url, direct_url, model, path):
    """Leaving in the middle of one's own request starts no work, and the next request is served."""
    with Call(base_url, path, b'{"model": ', headers={"Content-Length": "4000"}):
        pass
    with Call(base_url, path, body_for(path, model, max_tokens=2)) as call:
        assert call.answer().status == 200
    assert eventually(lambda: is_idle(direct_url), within_s=GONE_WITHIN_S)


def test_without_reading(base_url, direct_url, model):
    """A client that does not read for a while, then leaves, has neither lost the stream nor kept the engine busy."""
    body = body_for("/v1/chat/completions", model, max_tokens=ENDLESS_TOKENS, stream=True)
    with Call(base_url, "/v1/chat/completions", body) as call:
        assert eventually(lambda: unfinished_requests(direct_url) == 1, within_s=STARTED_WITHIN_S)
        assert not eventually(lambda: unfinished_requests(direct_url) == 0, within_s=1.0)
        assert next(call.pieces())
    assert eventually(lambda: is_idle(direct_url), within_s=GONE_WITHIN_S)
