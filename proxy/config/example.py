"""Writes configurations: the commented example, the JSON Schema, and a resolved one with its secrets hidden.

Called by `tidegate check` and by `python -m proxy.config`. Never shows a secret.
"""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from proxy.config.backend import BackendConfig
from proxy.config.sections import TidegateConfig
from proxy.config.values import SIZE_MARK, format_size
from proxy.config.yaml_text import dump

HIDDEN = "********"
EXAMPLE_BACKEND_URL = "http://127.0.0.1:8000"
_WIDTH = 118
_HEAD = """\
# yaml-language-server: $schema=schema.json
#
# Every setting of Tidegate with its default; a file needs only those that differ. Written by `make schema`.
# Each can also be given as an environment variable, TIDEGATE_SECTION__KEY (TIDEGATE_LISTEN__PORT=9000,
# TIDEGATE_BACKENDS='[{"url": "http://127.0.0.1:8000"}]'). The command line wins over the environment, and the
# environment over the file.
# `tidegate check` says everything that is wrong with a configuration, and what it amounts to.
"""


def render(config: TidegateConfig) -> str:
    """A configuration as YAML; every secret reads `********`."""
    return dump(_plain(config))


def schema_json() -> str:
    """JSON Schema of a configuration file, for editors."""
    schema = TidegateConfig.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Tidegate configuration", **schema}
    return json.dumps(schema, indent=2) + "\n"


def example_yaml() -> str:
    """A file with every setting, its default and its description."""
    example = TidegateConfig(backends=(BackendConfig(url=EXAMPLE_BACKEND_URL),))
    return _HEAD + "".join(_section(name, field, example) for name, field in TidegateConfig.model_fields.items())


def _section(name: str, field: FieldInfo, example: TidegateConfig) -> str:
    head = f"\n{_comment(field, '')}{name}:\n"
    value = getattr(example, name)
    if isinstance(value, tuple):
        return head + "".join(_as_item(_keys(item, "    ")) for item in value)
    return head + _keys(value, "  ")


def _keys(section: BaseModel, indent: str) -> str:
    plain = _plain(section)
    blocks = []
    for name, field in type(section).model_fields.items():
        entry = textwrap.indent(dump({name: plain[name]}), indent)
        blocks.append(_comment(field, indent) + entry)
    return "".join(blocks)


def _as_item(keys: str) -> str:
    """The same keys as one item of a list: its dash stands before the first key, below that one's comment."""
    comment, key, rest = re.split(r"^    (\w)", keys, maxsplit=1, flags=re.MULTILINE)
    return f"{comment.replace('    #', '  #')}  - {key}{rest}"


def _comment(field: FieldInfo, indent: str) -> str:
    lines = textwrap.wrap(field.description or "", _WIDTH - len(indent) - 2, break_on_hyphens=False)
    return "".join(f"{indent}# {line}\n" for line in lines)


def _plain(value: Any, field: FieldInfo | None = None) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name), one) for name, one in type(value).model_fields.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return _plain_scalar(value, is_size=field is not None and SIZE_MARK in field.metadata)


def _plain_scalar(value: Any, *, is_size: bool) -> Any:
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return format_size(value) if is_size else value
