"""A door in front of one backend that can lose the metrics page: `python -m tests.real.front PORT TARGET_PORT FLAG`.

Passes bytes on as they are. While the file FLAG exists, whoever asks for the metrics page is cut off; a proxy keeps
connections of its own for that, so that other traffic does not notice. Ending it is as if nobody listened any more.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_READ_BYTES: Final = 65_536
_METRICS_REQUEST: Final = b"GET /metrics "


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_cut: Callable[[], bool] | None = None
) -> None:
    """Hand bytes on until one side is gone or cut off, then let the other side know."""
    with suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            if is_cut is not None and data.startswith(_METRICS_REQUEST) and is_cut():
                break
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(port: int, target_port: int, flag: Path) -> None:
    """Listen until cancelled."""

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target_port)
        except OSError:
            writer.close()
            return
        async with asyncio.TaskGroup() as directions:
            directions.create_task(_copy(reader, up_writer, flag.exists))
            directions.create_task(_copy(up_reader, writer))

    server = await asyncio.start_server(passed, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
