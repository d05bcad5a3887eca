"""Playing virtual time in real time."""

import asyncio

import pytest

from proxy.sim.driver import Driver, EngineDied
from tests.sim.engines import engine, request


async def drive(driver, body):
    """Run `body` while the driver runs."""
    playing = asyncio.get_running_loop().create_task(driver.run())
    try:
        return await body
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def all_gains(ticket, tokens):
    """The gains of a ticket until it has all its tokens."""
    gains: list[int] = []
    while sum(gains) < tokens:
        gains.append(await ticket.next_gain())
    return gains


async def test_tokens_come_one_by_one():
    """Each step's tokens are handed out, and the request's times are measured in order."""
    driver = Driver(engine(), speed=10_000)
    ticket = driver.submit(request("a", 25, output=4), max_tokens=4, finish_reason="stop")
    assert await drive(driver, all_gains(ticket, 4)) == [1, 1, 1, 1]
    assert ticket.first_at
    assert ticket.arrived_at <= ticket.admitted_at <= ticket.first_at <= ticket.last_at
    assert driver.stats.endings["stop"] == 1
    assert driver.stats.generation_tokens.sum == 4


@pytest.mark.parametrize(("speed", "expected_s"), [(20, 0.2), (100, 0.04)])
async def test_speed(speed, expected_s):
    """Four steps of a virtual second take four seconds divided by the speed."""
    driver = Driver(engine(), speed=speed)
    clock = asyncio.get_running_loop().time
    started_at = clock()
    ticket = driver.submit(request("a", 25, output=4), max_tokens=4, finish_reason="stop")
    await drive(driver, all_gains(ticket, 4))
    assert expected_s <= clock() - started_at + 0.001 < expected_s + 1


async def test_it_wakes_up_after_idling():
    """A request that comes after a pause is played at once."""
    driver = Driver(engine(), speed=10_000)

    async def body():
        for name in "ab":
            ticket = driver.submit(request(name, 5, output=2), max_tokens=2, finish_reason="stop")
            await all_gains(ticket, 2)
            await asyncio.sleep(0)

    await drive(driver, body())
    assert driver.engine.counters.finished == 2


async def test_failure_reaches_whoever_waits():
    """If the simulation dies, nobody waits for ever."""
    driver = Driver(engine(), speed=10_000)
    ticket = driver.submit(request("a", 5, output=2), max_tokens=2, finish_reason="stop")
    driver.engine.pool = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await driver.run()
    with pytest.raises(EngineDied):
        await ticket.next_gain()


async def test_speed_must_be_positive():
    """Time cannot stand still."""
    with pytest.raises(ValueError, match="above 0"):
        Driver(engine(), speed=0)
