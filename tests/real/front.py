"""A door in front of one backend that can lose the metrics page: `python -m tests.real.front PORT TARGET_PORT FLAG`.

Passes bytes on as they are. While the file FLAG exists, whoever asks for the metrics page is cut off; a proxy keeps
connections of its own for that, so that other traffic does not notice. Ending it is as if nobody listened any more.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.real.between import Look, serve_between

_METRICS_REQUEST: Final = b"GET /metrics "


async def serve(port: int, target_port: int, flag: Path) -> None:
    """Listen until cancelled."""

    def new_look() -> Look:
        return lambda data: not (data.startswith(_METRICS_REQUEST) and flag.exists())

    await serve_between(port, target_port, new_look)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
