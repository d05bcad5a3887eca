"""The yardstick: the proxy that anybody would write first, with aiohttp at both ends.

It reads the JSON to know the model, as every router must, and decides nothing. It is a measuring instrument only.
"""

import argparse
import json
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web
from multidict import CIMultiDictProxy

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length"}
)
_BACKEND = web.AppKey("backend", str)
_SESSION = web.AppKey("session", aiohttp.ClientSession)


def _passed_on(headers: CIMultiDictProxy[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP]


async def _proxy(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    if request.method == "POST":
        try:
            json.loads(body)["model"]
        except (ValueError, KeyError):
            return web.json_response({"error": {"message": "no JSON body with a model"}}, status=400)
    session = request.app[_SESSION]
    url = request.app[_BACKEND] + request.path_qs
    async with session.request(
        request.method, url, headers=_passed_on(request.headers), data=body or None, allow_redirects=False
    ) as upstream:
        headers = _passed_on(upstream.headers)
        if not upstream.headers.get("Content-Type", "").startswith("text/event-stream"):
            return web.Response(status=upstream.status, headers=headers, body=await upstream.read())
        response = web.StreamResponse(status=upstream.status, headers=headers)
        await response.prepare(request)
        async for data in upstream.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response


async def _with_session(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        app[_SESSION] = session
        yield


def main() -> None:
    """Serve on loopback until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    app = web.Application(client_max_size=64 << 20)
    app[_BACKEND] = arguments.backend
    app.cleanup_ctx.append(_with_session)
    app.router.add_route("*", "/{path:.*}", _proxy)
    web.run_app(
        app,
        host="127.0.0.1",
        port=arguments.port,
        access_log=None,
        print=None,
        backlog=2048,
        handler_cancellation=True,  # a client that left must not keep its stream
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
