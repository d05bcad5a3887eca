"""What is wrong with a configuration, in words that name the place and the source but never a secret.

Called by `loading.py`. Never reads a setting from anywhere.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError

Path: TypeAlias = tuple[str | int, ...]

_SECRET = {"auth", "api_key", "api_key_env"}
"""Nothing at or under these is repeated in a message, whatever it is: a key often lands in the field beside its own."""
_OWN_WORDS = {
    "missing": "is required",
    "model_type": "must be a mapping of settings",
    "tuple_type": "must be a list",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "path_type": "must be a path",
}
_MAX_SHOWN_CHARS = 80


class ConfigError(Exception):
    """A configuration that cannot be used.

    Attributes:
        faults: one line for each thing that is wrong.
    """

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


def show_path(path: Path) -> str:
    """A place in the configuration as people write it: `backends[0].url`."""
    shown = ""
    for step in path:
        shown += f"[{step}]" if isinstance(step, int) else f".{step}" if shown else step
    return shown or "configuration"


def fault(path: Path, what: str, origins: Mapping[Path, str]) -> str:
    """One line about one place, with the source that the value came from when it is known."""
    for length in range(len(path), 0, -1):
        origin = origins.get(path[:length])
        if origin is not None:
            return f"{show_path(path)}: {what} [from {origin}]"
    return f"{show_path(path)}: {what}"


def describe(error: ValidationError, model: type[BaseModel], origins: Mapping[Path, str]) -> list[str]:
    """All faults of one validation, one line each."""
    lines = []
    for one in error.errors(include_url=False):
        path, kind = one["loc"], one["type"]
        if kind == "extra_forbidden":
            what = "there is no such setting" + _suggest(path, model)
        else:
            what = _OWN_WORDS.get(kind) or _reword(one["msg"])
            what += "" if kind == "missing" else _got(path, one["input"])
        lines.append(fault(path, what, origins))
    return lines


def _reword(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return re.sub(r"^(Input|String|Value) should ", "must ", message)


def _got(path: Path, value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return f" (got a {'mapping' if isinstance(value, dict) else 'list'})"
    is_leaf = len(path) > 1 and not isinstance(path[-1], int)
    if _SECRET.intersection(path) or not is_leaf or "@" in str(value):
        return f" (got a {type(value).__name__}, not shown)" if value is not None else " (got null)"
    shown = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return f" (got {shown if len(shown) <= _MAX_SHOWN_CHARS else shown[:_MAX_SHOWN_CHARS] + '...'})"


def _suggest(path: Path, model: type[BaseModel]) -> str:
    known: type[BaseModel] | None = model
    for step in path[:-1]:
        if isinstance(step, str) and known is not None:
            known = section_of(known, step)
    if known is None:
        return ""
    near = get_close_matches(str(path[-1]), known.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known.model_fields)}"


def section_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model behind a field (of a list: of its items), or None when the field is a plain value."""
    field = model.model_fields.get(name)
    if field is None:
        return None
    found = [field.annotation, *get_args(field.annotation)]
    return next((one for one in found if isinstance(one, type) and issubclass(one, BaseModel)), None)
