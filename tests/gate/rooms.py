"""A room with running turns and resting sessions in it, without a gate around it."""

from proxy.core.capacity import KvCapacity
from proxy.core.turns import SessionKey, StopReason
from proxy.gate.engine_room import EngineRoom
from proxy.state.calibration import ReturnGaps, ReturnOdds
from proxy.state.kv_ledger import Hold
from proxy.state.sessions import Residency, Session

NOW = 1_000.0


def room_of(blocks=100, *, batch=10**6, odds=None):
    """A room of blocks of a thousand tokens, whose engine has just reported."""
    room = EngineRoom(ReturnGaps(), odds or ReturnOdds())
    room.ledger.capacity = KvCapacity(total_blocks=blocks, block_tokens=1_000)
    room.batch_tokens = batch
    room.report_at = NOW
    return room


def session_of(name, *, turns=2, stop=StopReason.TOOL_USE, idle_since=NOW):
    """A resident session."""
    return Session(SessionKey("", name), Residency.IN, turns=turns, last_stop=stop, idle_since=idle_since)


def running(room, number, blocks, *, uncached=0):
    """A turn in flight."""
    hold = Hold(session_of(f"running {number}"), 0, int(blocks * 1_000), uncached, float(blocks), NOW)
    room.ledger.take(number, hold, 0)


def resting(room, name, blocks, **more):
    """An idle resident."""
    session = session_of(name, **more)
    room.ledger.rest(session, float(blocks), 0, 0)
    return session
