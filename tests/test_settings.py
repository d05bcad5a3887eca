from proxy.config import TidegateConfig
from proxy.gate.settings import EngineSettings
from proxy.settings import backend_of, engine_settings, forward_settings, server_settings, weights

CONFIG = TidegateConfig.model_validate(
    {
        "backends": [
            {"url": "https://a/one", "name": "a", "api_key": "k", "weight": 2.5, "data_parallel": "sum"},
            {"url": "http://b:8000", "name": "b", "kv_cache_tokens": 64_000},
        ],
        "timeouts": {"connect_s": 1.5, "keepalive_ping_s": 0.0},
    }
)


def test_each_backend_as_the_rest_knows_it():
    """Where it is, its key, its engines, its share."""
    a, b = map(backend_of, CONFIG.backends)

    assert (a.name, a.host, a.port, a.is_tls, a.path_prefix, a.api_key) == ("a", "a", 443, True, "/one", "k")
    assert (b.authority, b.api_key) == ("b:8000", None)
    assert engine_settings(CONFIG) == {"a": EngineSettings("sum"), "b": EngineSettings("auto", 64_000)}
    assert weights(CONFIG) == {"a": 2.5, "b": 1.0}


def test_times_and_limits_reach_their_parts():
    """Without pings no stream is opened early."""
    assert forward_settings(CONFIG).timeouts.connect_s == 1.5
    assert server_settings(CONFIG).body_bytes == CONFIG.limits.body_bytes
    assert server_settings(CONFIG).early_stream is None
    assert server_settings(TidegateConfig()).early_stream is not None
