"""What goes wrong in a simulated run, and how clients answer a refusal. Values only; the closed loop acts on them."""

from dataclasses import dataclass
from typing import Final

BACKOFF_S: Final = (1.1, 1.2, 2.0, 4.0, 8.0, 19.0, 35.0)
"""When Claude Code 2.1.197 comes back after each refusal; the last again and again (admission brief 2.4)."""
PATIENCE_REFUSALS: Final = 10
"""After so many it shows the error to its user, who asks again after `ANNOYED_S`."""
ANNOYED_S: Final = 60.0
BYTES_PER_TOKEN: Final = 4.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong in a run.

    Attributes:
        token_error: each session's bytes a token are off by up to this share, either way.
        poll_interval_s: between two scrapes; `dropped_polls` is the share of them that fail.
        restart_at_s: when the first engine is restarted; its turns fail and its cache is gone.
        abandoned: share of sessions whose user leaves after some turn.
        burst: agents that come besides at `burst_at_s`, for one session each.
    """

    token_error: float = 0.0
    poll_interval_s: float = 1.0
    dropped_polls: float = 0.0
    restart_at_s: float | None = None
    abandoned: float = 0.0
    burst: int = 0
    burst_at_s: float = 600.0
