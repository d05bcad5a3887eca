import pytest
from pydantic import ValidationError

from proxy.config import BackendConfig
from proxy.config import kv_events as module
from proxy.config.kv_events import KvEventsConfig


@pytest.fixture(autouse=True)
def _extra_is_installed(monkeypatch):
    """Whether it really is does not matter here."""
    monkeypatch.setattr(module, "find_spec", lambda _: object())


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5557", "tcp://engine-0.pods:1", "tcp://[::1]:65535"])
def test_an_engine_is_listened_to_where_it_is(endpoint):
    """Nothing is sent again unless it is said where."""
    events = BackendConfig.model_validate({"url": "http://h", "kv_events": {"endpoint": endpoint}}).kv_events

    assert events == KvEventsConfig(endpoint=endpoint)
    assert (events.replay_endpoint, events.topic) == (None, "")


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp://*:5557",
        "tcp://h",
        "tcp://h:0",
        "tcp://h:65536",
        "http://h:5557",
        "h:5557",
        "tcp://h:5557/x",
        "tcp://::1:5",
    ],
)
@pytest.mark.parametrize("setting", ["endpoint", "replay_endpoint"])
def test_what_cannot_be_connected_to_is_refused(setting, endpoint):
    """What an engine listens on is not where it is."""
    with pytest.raises(ValidationError, match="must be tcp://HOST:PORT"):
        KvEventsConfig.model_validate({"endpoint": "tcp://h:1", setting: endpoint})


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    """At the start and by `tidegate check`, not when the first event should come."""
    monkeypatch.setattr(module, "find_spec", lambda _: None)

    with pytest.raises(ValidationError, match=r"pip install 'tidegate\[kv-events\]'"):
        KvEventsConfig(endpoint="tcp://h:1")
    assert BackendConfig(url="http://h").kv_events is None
