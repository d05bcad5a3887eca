"""Measures how late the event loop runs a timer: the delay that everything else in the process suffers too."""

import asyncio
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 0.25


async def watch_loop_lag(observe: Callable[[float], None]) -> None:
    """Report the loop's lag in seconds, four times a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_at = loop.time() + _INTERVAL_S
        await asyncio.sleep(_INTERVAL_S)
        observe(max(0.0, loop.time() - due_at))
