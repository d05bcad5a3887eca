"""Which backends may take work: a small state machine a backend, fed by probes and by failed attempts.

Written by `net.probe` and by dispatch; read when placing. Bounded by the number of backends. A timeout is weaker
evidence than a refusal: a saturated engine answers late, a dead one not at all.
"""

from dataclasses import dataclass
from enum import StrEnum, unique


@unique
class Probe(StrEnum):
    """What one health probe saw."""

    OK = "ok"
    DOWN = "down"
    """Connection refused or reset, or the engine says that it is dead (any status but 200)."""
    TIMEOUT = "timeout"


@dataclass(slots=True)
class _Record:
    is_up: bool = True
    has_been_seen: bool = False
    timeouts_in_a_row: int = 0


class HealthTable:
    """Up or down per backend.

    Args:
        fall: probe timeouts in a row after which a backend is out.
    """

    def __init__(self, *, fall: int) -> None:
        self._fall = fall
        self._records: dict[str, _Record] = {}

    def add(self, name: str) -> None:
        """Begin to watch a backend. Until something is seen of it, it may be tried."""
        self._records.setdefault(name, _Record())

    def is_up(self, name: str) -> bool:
        """Whether a backend may take work."""
        return self._records[name].is_up

    def on_probe(self, name: str, probe: Probe) -> bool:
        """Take a probe's result.

        Returns:
            Whether the backend changed from up to down or back.
        """
        record = self._records[name]
        was_up = record.is_up
        was_seen = record.has_been_seen
        record.has_been_seen = True
        if probe is Probe.TIMEOUT:
            record.timeouts_in_a_row += 1
            record.is_up = record.is_up and record.timeouts_in_a_row < self._fall
        else:
            record.timeouts_in_a_row = 0
            record.is_up = probe is Probe.OK
        return was_up != record.is_up or not was_seen

    def on_connect_failure(self, name: str) -> bool:
        """An attempt was refused a connection: out at once, until a probe succeeds.

        Returns:
            Whether the backend was up until now.
        """
        record = self._records[name]
        was_up, record.is_up = record.is_up, False
        record.has_been_seen = True
        return was_up

    def __repr__(self) -> str:
        return f"<HealthTable { ({name: 'up' if r.is_up else 'down' for name, r in self._records.items()}) }>"
