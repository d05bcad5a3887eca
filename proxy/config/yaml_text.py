"""Reads YAML as people mean it, and writes it.

Called by `loading.py` and `example.py`. Never repeats a piece of the text in an error, since it may be a secret.
"""

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars (`off` is a word, `1:30` no number), no aliases, and doubled keys are found."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.doubled: list[str] = []

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", self.get_mark())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                self.doubled.append(f"line {key.start_mark.line + 1}: {key.value} is given twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {}  # its own, so that the parent's YAML 1.1 rules do not apply


def _resolve(tag: str, pattern: str, first_chars: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first_chars))


_resolve("null", "~|null|Null|NULL|", "~nN")
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"$"), [""])
_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", "[-+]?[0-9]+", "-+0123456789")
_resolve(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+.0123456789",
)


def _construct_int(loader: _Loader, node: yaml.Node) -> int:
    assert isinstance(node, yaml.ScalarNode)
    return int(loader.construct_scalar(node))  # the parent's would read 010 as eight


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def parse(text: str) -> tuple[Any, list[str]]:
    """What one YAML document says, and what is wrong with it; the value is None when it cannot be read."""
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        value = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        what = error.problem or "unreadable"
        if re.search(r"\b(tag|anchor|alias)\b", what):
            what = re.split(r"['\"]", what)[0].rstrip()  # its name is quoted there, and may be the beginning of a key
        return None, [f"{where}is not valid YAML: {what}"]
    except (yaml.YAMLError, ValueError, RecursionError, AssertionError, AttributeError, LookupError):
        # Beyond its own errors: giant numbers, deep nesting, and written-out tags that do not fit their text.
        return None, ["is not valid YAML"]
    finally:
        if loader is not None:
            loader.dispose()
    return value, loader.doubled


def dump(value: Any) -> str:
    """A value as block YAML, in the order given."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
