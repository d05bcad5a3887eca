import pytest
from pydantic import BaseModel, ValidationError

from proxy.config import ConfigError, TidegateConfig, TimeoutsConfig
from proxy.config.faults import section_of


def every_field(model: type[BaseModel] = TidegateConfig, path: str = ""):
    """All fields of all sections, by their dotted path."""
    for name, field in model.model_fields.items():
        yield f"{path}{name}", field
        section = section_of(model, name)
        if section is not None:
            yield from every_field(section, f"{path}{name}.")


def test_every_setting_says_what_it_does():
    """Effect, default and danger are in the description of each plain setting, and no section goes without one."""
    fields = dict(every_field())

    assert [path for path, field in fields.items() if not field.description] == []
    plain = {path: field for path, field in fields.items() if path.count(".") and path != "backends.url"}
    assert [path for path, field in plain.items() if "Default: " not in (field.description or "")] == []


def test_model_names_end_in_config():
    """Classes of settings cannot be mistaken for what they configure."""
    sections = {section_of(TidegateConfig, name) for name in TidegateConfig.model_fields}

    assert all(section is not None and section.__name__.endswith("Config") for section in sections)


def test_a_configuration_cannot_be_changed():
    """A running proxy's settings stay what was checked."""
    with pytest.raises(ValidationError):
        TidegateConfig().listen.port = 1  # type: ignore[misc] # the type says so as well


def test_the_pool_lets_go_before_uvicorn_does():
    """vLLM's server closes idle connections after 5 s; the default must stay below."""
    assert TimeoutsConfig().backend_keepalive_s < 5


def test_serving_needs_a_backend():
    """Without a backend the configuration is valid but there is nothing to serve."""
    with pytest.raises(ConfigError, match=r"^backends: at least one"):
        TidegateConfig().require_backends()
    TidegateConfig.model_validate({"backends": [{"url": "http://h"}]}).require_backends()


@pytest.mark.parametrize(
    "faulty",
    [
        {"limits": {"body_bytes": "64MiB", "buffered_bytes": "32MiB"}},
        {"admin": {"listen": {"port": 8900}}},
        {"listen": {"port": 9000}, "admin": {"listen": {"port": 9000}}},
        {"backends": [{"url": "http://h"}, {"url": "http://h"}]},
        {"health": {"path": "health"}},
        {"retry": {"max_attempts": 11}},
    ],
)
def test_settings_that_contradict_each_other_are_refused(faulty):
    """What cannot work together is found before anything listens."""
    with pytest.raises(ValidationError):
        TidegateConfig.model_validate(faulty)


def test_any_port_may_be_asked_for_twice():
    """Port 0 is a different one each time."""
    config = TidegateConfig.model_validate({"listen": {"port": 0}, "admin": {"listen": {"port": 0}}})

    assert config.admin.listen is not None
