import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from proxy.config import BackendConfig, TidegateConfig, example_yaml, load, render, schema_json
from proxy.config.__main__ import main
from proxy.config.example import EXAMPLE_BACKEND_URL, HIDDEN

FOLDER = Path(__file__).parents[2] / "config"


@pytest.mark.parametrize(("name", "made"), [("tidegate.yaml", example_yaml), ("schema.json", schema_json)])
def test_what_is_kept_is_what_the_models_say(name, made):
    """`make schema` has been run since the models changed."""
    assert (FOLDER / name).read_text(encoding="utf-8") == made()


def test_the_example_is_the_defaults_and_one_backend():
    """Whoever starts from the example changes nothing by it."""
    config = load(FOLDER / "tidegate.yaml", {}, {})

    assert config == TidegateConfig(backends=(BackendConfig(url=EXAMPLE_BACKEND_URL),))


def test_the_example_names_every_setting_within_the_line_length():
    """Nothing that can be set is missing, and it reads well in a terminal."""
    text = example_yaml()

    assert yaml.safe_load(text).keys() == TidegateConfig.model_fields.keys()
    assert max(map(len, text.splitlines())) <= 120


def test_the_example_fits_the_schema():
    """Editors that check with the schema agree with the loader."""
    schema = json.loads(schema_json())

    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(example_yaml()), schema)


@pytest.mark.parametrize(
    "faulty", [{"lissten": {}}, {"limits": {"body_bytes": "3 parsecs"}}, {"backends": [{}]}, {"health": {"fall": 0}}]
)
def test_the_schema_finds_mistakes(faulty):
    """An editor underlines what the loader would refuse."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(faulty, json.loads(schema_json()))


def test_a_resolved_configuration_hides_its_secrets(tmp_path):
    """`tidegate check` may be pasted into an issue."""
    keys_file = tmp_path / "keys"
    keys_file.write_text("sk-file")
    given = {"auth.keys": ["sk-inline"], "auth.keys_file": str(keys_file)}

    shown = render(load(None, {"K": "sk-env"}, given | {"backends": [{"url": "http://h", "api_key_env": "K"}]}))

    assert "sk-" not in shown
    resolved = yaml.safe_load(shown)
    assert resolved["auth"]["keys"] == [HIDDEN, HIDDEN]
    assert resolved["backends"][0]["api_key"] == HIDDEN
    assert resolved["limits"]["body_bytes"] == "32MiB"


def test_a_resolved_configuration_without_secrets_loads_again(tmp_path):
    """What is shown is a configuration."""
    config = load(None, {}, {"backends": [{"url": "http://h"}], "timeouts.idle_s": 1.5})
    path = tmp_path / "again.yaml"
    path.write_text(render(config))

    assert load(path, {}, {}) == config


def test_the_files_are_written_where_the_folder_is(tmp_path, monkeypatch, capsys):
    """Run elsewhere it says so instead of making folders."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="no config folder"):
        main()

    (tmp_path / "config").mkdir()
    main()

    assert (tmp_path / "config" / "schema.json").read_text() == schema_json()
    assert "tidegate.yaml" in capsys.readouterr().out
