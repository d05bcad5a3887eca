import pytest

from proxy.dialects import routes
from proxy.dialects.overload import overload_status


@pytest.mark.parametrize(
    ("path", "configured", "status"),
    [
        ("/v1/responses", 429, 503),
        ("/v1/responses", 503, 503),
        ("/v1/messages", 429, 429),
        ("/v1/messages", 503, 429),
        ("/v1/chat/completions", 429, 429),
        ("/v1/chat/completions", 503, 503),
        ("/v1/completions", 503, 503),
    ],
)
def test_l18_overload_by_route(path, configured, status):
    """Codex takes a 429 for final, Claude Code is safest with one; OpenAI's other clients take either."""
    assert overload_status(routes.match("POST", path)[0], configured) == status
