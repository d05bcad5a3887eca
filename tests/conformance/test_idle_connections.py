"""The keep-alive race: an engine closes an idle connection just when the proxy sends the next request on it."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.conformance.bodies import CHAT, body_for
from tests.conformance.wire import ask

UVICORN_KEEPALIVE_S = 5.0
CONNECTIONS = 12


def test_idle_time_of_the_engines_server(endpoint, base_url, model):
    """Requests that come about five seconds after the last ones, when uvicorn lets go, are all answered."""
    if endpoint.is_simulated:
        pytest.skip("the simulated engine's server is not uvicorn")
    body = body_for(CHAT, model, max_tokens=1)

    def twice(number):
        first = ask(base_url, CHAT, body).status
        Event().wait(UVICORN_KEEPALIVE_S - 0.06 + number * 0.01)  # the idle time itself is what is tried
        return first, ask(base_url, CHAT, body).status

    with ThreadPoolExecutor(CONNECTIONS) as clients:
        assert list(clients.map(twice, range(CONNECTIONS))) == [(200, 200)] * CONNECTIONS
