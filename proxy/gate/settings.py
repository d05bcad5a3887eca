"""What can be chosen about admission. Made by the composition root; read by the gate."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What can be chosen.

    Attributes:
        is_enforcing: False lets everything pass at once and only counts what would have waited.
        max_hold_s: longest wait of a request before it is refused with a ticket.
        target_wait_s: the wait of a session to aim for when more want in than fit; shorter is fairer and slower.
        report_interval_s: between two reports of an engine when all is well; decides when one counts as old.
        guards_knee: whether turns are capped where an engine gets slower with more of them.
        holds_herd: whether prompts with the same head wait a moment while the first of them is computed.
        max_waiting: requests that wait at most, and the bytes of their bodies.
    """

    is_enforcing: bool = True
    max_hold_s: float = 240.0
    target_wait_s: float = 1_200.0
    report_interval_s: float = 1.0
    guards_knee: bool = False
    holds_herd: bool = True
    max_waiting: int = 512
    max_waiting_bytes: int = 512 * 2**20


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What is configured about the engines behind one backend's address.

    Attributes:
        data_parallel: `ranks` keeps a room for each of several engines, `sum` one for all, `auto` chooses.
        kv_cache_tokens: their size together, for engines that do not tell it.
    """

    data_parallel: Literal["auto", "ranks", "sum"] = "auto"
    kv_cache_tokens: int | None = None
