"""What is configured, as the plain values that parts take. Called by the composition root alone; decides nothing."""

from proxy.config import BackendConfig, TidegateConfig
from proxy.core.backends import Backend
from proxy.gate.settings import EngineSettings
from proxy.net.early_stream import EarlyStreamSettings
from proxy.net.forward import ForwardSettings
from proxy.net.server import ServerSettings
from proxy.net.upstream import UpstreamTimeouts


def backend_of(config: BackendConfig) -> Backend:
    """A configured backend as the plain value that the rest of the program knows."""
    return Backend(
        name=config.name,
        host=config.host,
        port=config.port,
        authority=config.authority,
        is_tls=config.is_tls,
        path_prefix=config.path_prefix,
        api_key=config.api_key.get_secret_value() if config.api_key else None,
    )


def engine_settings(config: TidegateConfig) -> dict[str, EngineSettings]:
    """What is said about the engines behind each backend, by its name."""
    return {one.name: EngineSettings(one.data_parallel, one.kv_cache_tokens) for one in config.backends}


def weights(config: TidegateConfig) -> dict[str, float]:
    """Each backend's share of new sessions beside others as large, by its name."""
    return {one.name: one.weight for one in config.backends}


def forward_settings(config: TidegateConfig) -> ForwardSettings:
    """What each attempt needs to know."""
    timeouts = config.timeouts
    return ForwardSettings(
        timeouts=UpstreamTimeouts(
            connect_s=timeouts.connect_s,
            first_byte_s=timeouts.first_byte_s,
            idle_s=timeouts.idle_s,
            keepalive_s=timeouts.backend_keepalive_s,
            max_age_s=timeouts.backend_connection_age_s,
        ),
        answer_buffer_bytes=config.limits.answer_buffer_bytes,
        has_receipts=config.telemetry.receipts,
    )


def server_settings(config: TidegateConfig) -> ServerSettings:
    """What the data port keeps to."""
    timeouts, limits, queue = config.timeouts, config.limits, config.queue
    return ServerSettings(
        headers_s=timeouts.headers_s,
        body_s=timeouts.body_s,
        keepalive_s=timeouts.keepalive_s,
        write_stall_s=timeouts.write_stall_s,
        body_bytes=limits.body_bytes,
        header_field_bytes=limits.header_field_bytes,
        headers=limits.headers,
        early_stream=EarlyStreamSettings(queue.early_stream, queue.early_stream_after_s)
        if queue.early_stream != "off" and timeouts.keepalive_ping_s
        else None,
    )
