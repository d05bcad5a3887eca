import asyncio


def pytest_configure():
    """Leave no loop for looptime to ask for: before a sync test it makes one otherwise, and nobody closes it."""
    asyncio.set_event_loop(None)
