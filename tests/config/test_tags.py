import pytest

from proxy.config import ConfigError, TidegateConfig, load, render


def config_of(tmp_path, text):
    """A loaded configuration."""
    path = tmp_path / "tidegate.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, {}, {})


BACKENDS = """\
backends:
  - {url: "http://a:1", tags: [h200, eu], weight: 2}
  - {url: "http://b:1", tags: [h200]}
"""


def test_tags_and_weights_are_read_and_shown(tmp_path):
    """What is printed can be read again."""
    config = config_of(tmp_path, BACKENDS + "models: {tags: {big-*: [h200, eu], m.1: [h200]}}\n")

    assert [(backend.tags, backend.weight) for backend in config.backends] == [(("h200", "eu"), 2.0), (("h200",), 1.0)]
    assert config.models.tags == {"big-*": ("h200", "eu"), "m.1": ("h200",)}
    assert config_of(tmp_path, render(config)) == config


def test_tags_that_no_backend_has_are_refused(tmp_path):
    """All of them at one backend: who would wait for a backend that is not there."""
    with pytest.raises(
        ConfigError, match=r"models.*no backend has all the tags that tags asks for: x: eu, us; y: mars"
    ):
        config_of(tmp_path, BACKENDS + "models: {tags: {x: [eu, us], y: [mars], z: [eu]}}\n")


def test_tags_may_be_there_before_the_backends(tmp_path):
    """A file for tidegate demo, or with backends from the command line, has none of its own."""
    assert config_of(tmp_path, "models: {tags: {x: [eu]}}\n").models.tags == {"x": ("eu",)}


@pytest.mark.parametrize(
    "text",
    [
        "backends: [{url: 'http://a', weight: 0}]",
        "backends: [{url: 'http://a', weight: true}]",
        "backends: [{url: 'http://a', weight: .inf}]",
        "backends: [{url: 'http://a', tags: ['a b']}]",
        "backends: [{url: 'http://a', tags: ['']}]",
        "models: {tags: {x: []}}",
        "models: {tags: {x: eu}}",
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, text):
    """With its path."""
    with pytest.raises(ConfigError, match=r"backends|models\.tags"):
        config_of(tmp_path, text + "\n")


def test_by_default_nothing_is_said():
    """Every backend counts alike, and no model is kept to any."""
    config = TidegateConfig.model_validate({"backends": [{"url": "http://a"}]})

    assert (config.backends[0].weight, config.backends[0].tags, config.models.tags) == (1.0, (), {})
