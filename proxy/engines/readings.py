"""Gathers the wanted samples of a page by engine, before a parser makes reports of them. Pure; never raises."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.engines.exposition import number, samples

MAX_RANKS: Final = 256
"""Engines on one page that are looked at; more is no engine's page."""
SETTINGS: Final = "settings"
"""The fact whose message is its labels."""
START_TIME: Final = "start_time"
"""The fact that belongs to the whole page."""
_MAX_COUNT: Final = 2.0**53
"""Above it a double no longer counts by one."""


@dataclass(slots=True)
class Readings:
    """The samples of one engine. The same fact said twice counts at its largest: never freer than any line says.

    Attributes:
        values: by fact and by the value of the label that splits it, empty when nothing does.
        settings: labels of its info samples.
    """

    values: dict[tuple[str, str], float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    model_name: str | None = None

    def add(self, fact: str, part: str, value: float) -> None:
        """Take one sample."""
        key = (fact, part)
        self.values[key] = max(value, self.values.get(key, 0.0))

    def take(self, other: "Readings") -> None:
        """Take all samples of another."""
        for (fact, part), value in other.values.items():
            self.add(fact, part, value)
        self.settings = other.settings | self.settings
        self.model_name = self.model_name or other.model_name

    def number(self, fact: str, part: str = "") -> float | None:
        """A value, or None."""
        return self.values.get((fact, part))

    def count(self, fact: str, part: str = "") -> int | None:
        """A value as a whole number, or None."""
        return _whole(self.values.get((fact, part)))

    def parts(self, fact: str) -> dict[str, int]:
        """A fact that a label splits, by that label's value."""
        return {part: int(value) for (name, part), value in self.values.items() if name == fact and value < _MAX_COUNT}

    def total(self, fact: str) -> int | None:
        """The sum over all parts of a fact, or None when there is none."""
        parts = self.parts(fact)
        return sum(parts.values()) if parts else None

    def setting(self, name: str) -> float | None:
        """A setting as a number above zero, or None: the text may be `None` or missing."""
        value = number(self.settings.get(name, ""))
        return value or None

    def whole_setting(self, name: str) -> int | None:
        """A setting as a whole number above zero, or None."""
        return _whole(self.setting(name)) or None


@dataclass(frozen=True, slots=True)
class Layout:
    """Which samples of an engine's page are wanted, and how they are labelled.

    Attributes:
        wanted: the fact that each metric stands for, by the metric's name.
        rank_label: the label that tells engines apart.
        split_by: the label that splits a fact into parts.
        known_parts: the closed set of a fact's parts, where they become label values of ours; others are `other`.
    """

    wanted: Mapping[str, str]
    rank_label: str
    split_by: Mapping[str, str]
    known_parts: Mapping[str, frozenset[str]]

    def part(self, fact: str, labels: Mapping[str, str]) -> str:
        """The part of a fact that a sample with these labels is about."""
        label = self.split_by.get(fact)
        part = labels.get(label, "") if label is not None else ""
        known = self.known_parts.get(fact)
        return part if known is None or part in known else "other"


@dataclass(frozen=True, slots=True)
class Page:
    """All engines of a page, by rank, in order."""

    ranks: Mapping[str, Readings]
    start_time_s: float | None


def gather(text: str, layout: Layout) -> Page:
    """The readings of every engine on a page."""
    ranks: dict[str, Readings] = {}
    start_time_s: float | None = None
    for sample in samples(text, layout.wanted):
        if sample.fact == START_TIME:
            start_time_s = sample.value or None
            continue
        rank = sample.labels.get(layout.rank_label, "")
        if rank not in ranks and len(ranks) >= MAX_RANKS:
            continue
        readings = ranks.setdefault(rank, Readings())
        readings.model_name = sample.labels.get("model_name") or readings.model_name
        if sample.fact == SETTINGS:
            readings.settings.update(sample.labels)
        else:
            readings.add(sample.fact, layout.part(sample.fact, sample.labels), sample.value)
    return Page(_ranked(ranks), start_time_s)


def _ranked(ranks: dict[str, Readings]) -> dict[str, Readings]:
    """In order of rank; what has no rank belongs to the only engine, and to nobody when there are several."""
    unranked = ranks.pop("", None)
    if unranked is not None and len(ranks) <= 1:
        for only in ranks.values() or [ranks.setdefault("0", Readings())]:
            only.take(unranked)
    return dict(sorted(ranks.items(), key=lambda item: (len(item[0]), item[0])))


def ratio(part: float | None, whole: float | None) -> float | None:
    """A share between 0 and 1, or None when either is unknown, nothing was counted, or it makes no sense."""
    return part / whole if part is not None and whole and part <= whole else None


def usage(value: float | None) -> float | None:
    """A usage gauge; one above 1 by more than rounding is measured in something else, so unknown."""
    return None if value is None or value > 1.01 else min(1.0, value)


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value < _MAX_COUNT else None
