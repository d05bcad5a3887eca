"""The kinds of value that settings are made of: seconds, counts, sizes, secrets; and how a setting is declared.

Called by the other files of this package. Never reads a file or the environment.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, Strict, WithJsonSchema

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMG]i?B|[KMG]i|B)", re.IGNORECASE)
VISIBLE_ASCII = re.compile(r"[!-~]+")


def parse_size(value: Any) -> Any:
    """Bytes of a size such as `32MiB`, `512 MiB`, `1GB` or `1Gi`; what is not a string is left to the type check.

    Raises:
        ValueError: the string is no size.
    """
    if not isinstance(value, str):
        return value
    matched = _SIZE.fullmatch(value.strip())
    if matched is None:
        raise ValueError("must be a whole number of bytes, or a number with a unit such as 512KiB, 32MiB or 1GB")
    return int(float(matched[1]) * _UNITS[matched[2].upper()])


def format_size(size_bytes: int) -> int | str:
    """The shortest exact way to write a size: `32MiB`, or the number when no binary unit divides it."""
    for unit in ("GiB", "MiB", "KiB"):
        count, rest = divmod(size_bytes, _UNITS[unit.upper()])
        if count and not rest:
            return f"{count}{unit}"
    return size_bytes


def _sendable(secret: SecretStr) -> SecretStr:
    if not VISIBLE_ASCII.fullmatch(secret.get_secret_value()):
        raise ValueError("must be visible ASCII without spaces, because it travels in a header, and not empty")
    return secret


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must be printable")
    return name


def _plain_name(name: str) -> str:
    if "*" in name or "?" in name:
        raise ValueError("must be the name of one model, without * and ?")
    return _printable(name)


# Strict, because a coerced `true` would become one second. The ceiling of a day is there to catch milliseconds.
Seconds = Annotated[float, Strict(), Field(gt=0, le=86_400, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Strict(), Field(ge=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Strict(), Field(ge=1, le=1_000_000)]
Port = Annotated[int, Strict(), Field(ge=0, le=65_535)]
Host = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9._:%-]+$")]
ModelPattern = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_printable)]
ModelName = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_plain_name)]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
Secret = Annotated[SecretStr, AfterValidator(_sendable)]
SIZE_MARK = "size"
SizeBytes = Annotated[
    int,
    BeforeValidator(parse_size),
    Strict(),
    Field(ge=1024, le=2**50),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1024},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?([KMGkmg][Ii]?[Bb]|[KMGkmg][Ii]|[Bb])$"},
            ]
        }
    ),
    SIZE_MARK,
]


def setting(default: Any, effect: str, danger: str, *, shown: str | None = None) -> Any:
    """A field whose description cannot contradict its default; `shown` words the default where the value cannot."""
    if shown is None:
        shown = str(default).lower() if isinstance(default, bool) else str(default).removesuffix(".0")
    return Field(default=default, description=f"{effect} Default: {shown}. {danger}")


def size_setting(default_bytes: int, effect: str, danger: str) -> Any:
    """A field that holds a size in bytes."""
    return setting(default_bytes, effect, danger, shown=str(format_size(default_bytes)))


class SectionConfig(BaseModel):
    """A group of settings: cannot be changed, knows no others, and never shows a value in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
