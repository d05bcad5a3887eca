import asyncio
from dataclasses import replace

import orjson
import pytest

from tests.bench.bodies import body
from tests.bench.fake_backend import Connection, Engine
from tests.bench.load import Load
from tests.bench.scenarios import SCENARIOS, Scenario

_SHORT = {each.name: replace(each, connections=3, warm_s=0.05, window_s=0.1) for each in SCENARIOS}


async def _figures(scenario: Scenario, protocol: type[Connection]):
    engine, made = Engine(), []

    def connection() -> Connection:
        made.append(protocol(engine))
        return made[-1]

    async with await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        figures = await Load(scenario, port, port, []).run()
        for each in made:
            each.transport.abort()
    await asyncio.sleep(0)
    return figures


@pytest.mark.parametrize("scenario", _SHORT.values(), ids=_SHORT)
async def test_every_load_finds_the_engine_right(scenario):
    """Each load runs to its end against the engine itself, and everything it counts is there."""
    figures = await _figures(scenario, Connection)

    assert figures.faults == {}
    assert figures.units > 0


async def test_an_engine_that_cuts_streams_is_found_out():
    """Three streams that lose their last events are three faults."""

    class Cutting(Connection):
        def _send_token(self):
            super()._send_token()
            if self.tokens_left == 2:
                self.transport.close()

    figures = await _figures(_SHORT["sse_64"], Cutting)

    assert figures.faults == {"connection lost before the answer ended (closed)": 3}


def test_an_agents_body_is_about_100_kb_and_shares_its_prefix():
    """System text and the first words are common, the history is a session's own."""
    first, second = (body(_SHORT["requests_100k"], number) for number in (0, 1))

    assert len(first) == pytest.approx(100_000, rel=0.05)
    assert first != second
    assert orjson.loads(first)["messages"][0] == orjson.loads(second)["messages"][0]
