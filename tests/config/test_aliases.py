import pytest

from proxy.config import ConfigError, load


def aliases(text, environ=None, write=None):
    """The aliases of a file and an environment."""
    path = write(text) if write is not None else None
    return load(path, environ or {}, {}).models.aliases


@pytest.fixture
def write(tmp_path):
    """Write a configuration file."""

    def written(text):
        path = tmp_path / "tidegate.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_l44_aliases_are_a_mapping_in_its_order(write):
    """Names with dots and stars need no quotes in a file."""
    text = "models:\n  aliases:\n    claude-haiku-4.5*: qwen\n    claude-*: big/model\n"

    assert list(aliases(text, write=write).items()) == [("claude-haiku-4.5*", "qwen"), ("claude-*", "big/model")]


def test_l44_the_environment_adds_to_the_file(write):
    """As with every mapping: the later source wins, name by name."""
    environ = {"TIDEGATE_MODELS__ALIASES": '{"b": "z", "c": "y"}'}

    assert aliases("models:\n  aliases: {a: x, b: x}\n", environ, write) == {"a": "x", "b": "z", "c": "y"}


@pytest.mark.parametrize("value", ["{a: 'b*'}", "{a: 'b?'}", "{a: ''}", "{'': b}", "{a: 5}", "[a]", '{"a\\nb": c}'])
def test_what_is_no_name_is_refused(write, value):
    """A pattern cannot be asked for, and a name is text."""
    with pytest.raises(ConfigError) as raised:
        aliases(f"models:\n  aliases: {value}\n", write=write)

    assert "models.aliases" in str(raised.value)


@pytest.mark.parametrize("value", ["{a: b, b: c}", "{'claude-*': b, b: c}", "{a: b, b: a}"])
def test_l44_an_alias_of_an_alias_is_refused(write, value):
    """Names are resolved once, so a chain would end in a name that nobody serves."""
    with pytest.raises(ConfigError, match=r"models\.aliases.*an alias of an alias; write the served name: .*: b"):
        aliases(f"models:\n  aliases: {value}\n", write=write)


def test_a_name_may_stand_for_itself(write):
    """So that a pattern behind it never counts for it."""
    assert aliases("models:\n  aliases: {a: a, a*: b}\n", write=write) == {"a": "a", "a*": "b"}
