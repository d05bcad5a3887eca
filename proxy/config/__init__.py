"""Every setting, how the sources of settings are merged, and how a configuration is shown.

Read by `app.py` and the command line only. Nothing below them ever sees a config object: they get plain values.
"""

from proxy.config.backend import BackendConfig
from proxy.config.example import example_yaml, render, schema_json
from proxy.config.faults import ConfigError
from proxy.config.loading import load
from proxy.config.sections import (
    AddressConfig,
    AdminConfig,
    AdmissionConfig,
    AuthConfig,
    HealthConfig,
    LimitsConfig,
    ListenConfig,
    QueueConfig,
    RetryConfig,
    TelemetryConfig,
    TidegateConfig,
    TimeoutsConfig,
)

__all__ = [
    "AddressConfig",
    "AdminConfig",
    "AdmissionConfig",
    "AuthConfig",
    "BackendConfig",
    "ConfigError",
    "HealthConfig",
    "LimitsConfig",
    "ListenConfig",
    "QueueConfig",
    "RetryConfig",
    "TelemetryConfig",
    "TidegateConfig",
    "TimeoutsConfig",
    "example_yaml",
    "load",
    "render",
    "schema_json",
]
