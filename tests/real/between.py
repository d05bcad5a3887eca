"""Stands between a proxy and its backend on a port of its own, and passes bytes on as they are.

Used by the wire tap and by the door that can lose the metrics page.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_READ_BYTES: Final = 65_536

Look = Callable[[bytes], bool]
"""Sees what one read of a connection brought before it is passed on; False cuts the connection off."""


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Look | None = None) -> None:
    """Hand bytes on until one side is gone or cut off, then let the other side know."""
    with suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            if look is not None and not look(data):
                break
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve_between(port: int, target_port: int, new_look: Callable[[], Look]) -> None:
    """Listen until cancelled.

    Args:
        port: where the proxy connects to.
        target_port: where the backend listens.
        new_look: makes what sees the requests of one connection.
    """

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target_port)
        except OSError:
            writer.close()
            return
        async with asyncio.TaskGroup() as directions:
            directions.create_task(_copy(reader, up_writer, new_look()))
            directions.create_task(_copy(up_reader, writer))

    server = await asyncio.start_server(passed, "127.0.0.1", port)
    async with server:
        await server.serve_forever()
