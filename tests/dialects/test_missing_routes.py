import json

import pytest

from proxy.dialects import routes
from proxy.dialects.missing_routes import estimated_count, refusal


@pytest.mark.parametrize(
    ("path", "since"),
    [("/v1/messages", "0.11.1"), ("/v1/responses", "0.10"), ("/v1/messages/count_tokens", "0.17")],
)
def test_l42_who_asks_is_told_what_is_missing_and_since_when_there_is_one(path, since):
    """No 404, after which Claude Code would ask for the same as a whole (L26); and nothing that is tried again."""
    route, _ = routes.match("POST", path)
    told = refusal(route, f"{path}?beta=true")

    assert (told.status, told.retry_after_s) == (400, None)
    assert f"the route {path};" in told.message
    assert told.message.endswith(f" vLLM has it since {since}.")


def test_a_route_without_a_known_age_is_named_all_the_same():
    """What is not known is not said."""
    route, _ = routes.match("POST", "/v1/chat/completions")

    assert refusal(route, "/v1/chat/completions").message.endswith("it does not know it.")


def test_l45_the_estimate_grows_with_the_text():
    """About four bytes a token; an image by its usual price, not by its bytes."""
    short = {"messages": [{"role": "user", "content": "x" * 400}]}
    image = {"role": "user", "content": [{"type": "image", "source": {"data": "A" * 1_000_000}}]}
    pictured = {"messages": [*short["messages"], image]}

    def counted(fields):
        return json.loads(estimated_count(fields))["input_tokens"]

    assert 100 <= counted(short) <= 115
    assert 1_000 < counted(pictured) < 1_400
    assert counted({}) == 1


def test_an_estimate_of_something_odd_is_still_a_number():
    """The engine would refuse it; a count is not where that is decided."""
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]

    assert json.loads(estimated_count({"messages": {"not": "a list"}, "system": 5}))["input_tokens"] >= 1
    assert json.loads(estimated_count({"messages": deep}))["input_tokens"] >= 1
