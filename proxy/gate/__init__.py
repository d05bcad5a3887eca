"""The admission gate: which request may start now, on which backend, and who waits.

Plain objects without clock or loop. Owned by dispatch, which calls them for every event; the policy simulation drives
the very same objects in virtual time.
"""

from proxy.gate.gate import Gate
from proxy.gate.placement import Placement
from proxy.gate.settings import GateSettings

__all__ = ["Gate", "GateSettings", "Placement"]
