"""Metrics pages of engines, from the fixtures."""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "engines"

NAMES: Final = tuple(sorted(path.stem for path in _FOLDER.glob("*.txt")))


def page(name: str) -> str:
    """One page's text."""
    return (_FOLDER / f"{name}.txt").read_text()


def line(name: str, value: object, **labels: str) -> str:
    """One sample as an engine writes it."""
    shown = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"{name}{{{shown}}} {value}\n" if labels else f"{name} {value}\n"
