"""The plainest of balancers: each request goes to the next backend. `python -m tests.real.round_robin PORT URL ...`.

For comparison only; passes streams on piece by piece.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

_NOT_PASSED_ON: Final = ("host", "content-length", "transfer-encoding", "connection")
_LARGEST_BODY: Final = 64 * 1024 * 1024


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON)


async def serve(port: int, urls: Sequence[str]) -> None:
    """Listen until cancelled."""
    following = cycle(urls)
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
    ) as http:

        async def passed(request: web.Request) -> web.StreamResponse:
            url = next(following) + request.path_qs
            body = await request.read()
            async with http.request(request.method, url, headers=_passed_on(request.headers), data=body) as answer:
                response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response

        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", passed)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))
