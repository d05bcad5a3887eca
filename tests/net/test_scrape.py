import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from proxy.core.backends import Backend
from proxy.core.reports import ScrapeFailure
from proxy.net.scrape import Scraper, ScrapeSettings
from tests.fakes.backend import answering, scripted_backend

PAGE = b'vllm:num_requests_running{engine="0"} 3\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
SETTINGS = ScrapeSettings(timeout_s=0.3)


def answer(body=PAGE, *, status=200, headers=b""):
    """A complete answer."""
    return b"HTTP/1.1 %d X\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n%b\r\n%b" % (
        status, len(body), headers, body
    )  # fmt: skip


def backend_at(url, **more):
    """A backend that is reached under this address."""
    parts = urlsplit(url)
    return Backend(name="a", host=parts.hostname or "", port=parts.port or 0, authority=parts.netloc, **more)


class Heard:
    """What a scraper told, in order, and the time that it sees."""

    def __init__(self):
        self.reports = []
        self.failures = []
        self.now = 100.0

    @asynccontextmanager
    async def scraper(self, *backends, settings=SETTINGS, chance=lambda: 0.5):
        """A scraper that tells this listener."""
        scraper = Scraper(
            backends,
            settings,
            on_report=lambda name, reports, now: self.reports.append((name, reports, now)),
            on_failure=lambda name, reason, now: self.failures.append((name, reason, now)),
            clock=lambda: self.now,
            chance=chance,
        )
        try:
            yield scraper
        finally:
            await scraper.close()


async def failure_of(script, *, settings=SETTINGS):
    """Why a scrape of a backend with this script fails."""
    heard = Heard()
    async with scripted_backend(script, metrics_page=None) as fake, heard.scraper(settings=settings) as scraper:
        await scraper.scrape_once(backend_at(fake.url))
    assert not heard.reports
    ((name, reason, now),) = heard.failures
    assert ("a", 100.0) == (name, now)
    return reason


async def test_a_page_is_read_told_and_kept():
    """With the backend's own path and key, uncompressed."""
    heard = Heard()
    async with scripted_backend(answering(answer()), metrics_page=None) as fake, heard.scraper() as scraper:
        backend = backend_at(fake.url, path_prefix="/engine", api_key="sk-1")
        assert scraper.last("a") is None

        await scraper.scrape_once(backend)

        ((name, (report,), now),) = heard.reports
        assert ("a", 3, 0.5, 100.0) == (name, report.running, report.kv_usage_ratio, now)
        assert ((report,), 100.0) == (scraper.last("a").reports, scraper.last("a").at_s)
        (request,) = fake.seen
        assert "GET /engine/metrics HTTP/1.1" == request.line
        assert ("Bearer sk-1", "identity") == (request.header("Authorization"), request.header("Accept-Encoding"))


async def test_the_last_good_page_outlives_a_failure():
    """Row 96: last good value, with its age."""
    heard = Heard()
    async with scripted_backend(answering(answer()), metrics_page=None) as fake, heard.scraper() as scraper:
        await scraper.scrape_once(backend_at(fake.url))
        fake.script = answering(answer(b"<html></html>"))
        heard.now = 107.0

        await scraper.scrape_once(backend_at(fake.url))

        assert [("a", ScrapeFailure.NOT_AN_ENGINE, 107.0)] == heard.failures
        assert 100.0 == scraper.last("a").at_s


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (answer(b"<html><body>hello</body></html>\n"), ScrapeFailure.NOT_AN_ENGINE),
        (answer(b""), ScrapeFailure.NOT_AN_ENGINE),
        (answer(b"\xff\xfe\x00" * 100), ScrapeFailure.NOT_AN_ENGINE),
        (answer(status=404), ScrapeFailure.MISSING),
        (answer(status=401), ScrapeFailure.STATUS),
        (answer(status=500), ScrapeFailure.STATUS),
        (answer(status=302, headers=b"Location: /elsewhere\r\n"), ScrapeFailure.STATUS),
        (answer(headers=b"Content-Encoding: gzip\r\n"), ScrapeFailure.ENCODED),
        (b"not http at all\r\n\r\n", ScrapeFailure.UNREACHABLE),
        (b"HTTP/1.1 200 X\r\nContent-Length: zzz\r\n\r\n", ScrapeFailure.UNREACHABLE),
    ],
)
async def test_odd_answers_are_failures_with_a_reason(raw, reason):
    """Nothing is raised, nothing is followed."""
    assert reason is await failure_of(answering(raw))


async def test_a_page_that_breaks_off_is_a_failure():
    """Fewer bytes than announced."""

    async def script(_request, connection):
        await connection.send(answer()[:-10])
        connection.close()

    assert ScrapeFailure.UNREACHABLE is await failure_of(script)


async def test_a_slow_page_is_given_up_in_time():
    """Row 96: a head at once, then nothing."""

    async def script(_request, connection):
        await connection.send(answer()[:-10])
        await connection.until_closed()

    assert ScrapeFailure.TIMEOUT is await failure_of(script)


async def test_reading_stops_at_the_limit():
    """Row 96: a page without end does not fill our memory."""
    sent = 0

    async def script(_request, connection):
        nonlocal sent
        await connection.send(b"HTTP/1.1 200 X\r\n\r\n")
        while True:
            await connection.send(PAGE * 100)
            sent += 1

    limited = replace(SETTINGS, size_limit_bytes=100_000, timeout_s=5.0)

    assert ScrapeFailure.TOO_LARGE is await failure_of(script, settings=limited)
    assert sent < 10_000


async def test_a_page_of_exactly_the_limit_is_read():
    """The limit itself is allowed."""
    heard = Heard()
    settings = replace(SETTINGS, size_limit_bytes=len(PAGE))
    async with (
        scripted_backend(answering(answer()), metrics_page=None) as fake,
        heard.scraper(settings=settings) as scraper,
    ):
        await scraper.scrape_once(backend_at(fake.url))

    assert 1 == len(heard.reports)


async def test_nobody_listening_is_unreachable():
    """Connection refused; a name that does not resolve."""
    heard = Heard()
    async with heard.scraper() as scraper:
        for url in ("http://127.0.0.1:1", "http://not..a..name:80"):
            await scraper.scrape_once(backend_at(url))

    assert [ScrapeFailure.UNREACHABLE] * 2 == [reason for _, reason, _ in heard.failures]


async def test_one_scrape_of_a_backend_is_in_flight():
    """A second one would only add to what is slow already."""
    heard, release = Heard(), asyncio.Event()

    async def script(_request, connection):
        await release.wait()
        await connection.send(answer())

    settings = replace(SETTINGS, timeout_s=5.0)
    async with scripted_backend(script, metrics_page=None) as fake, heard.scraper(settings=settings) as scraper:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scraper.scrape_once(backend_at(fake.url)))
            await asyncio.sleep(0)
            await scraper.scrape_once(backend_at(fake.url))
            release.set()
        await scraper.scrape_once(backend_at(fake.url))

        assert 2 == len(fake.seen) == len(heard.reports)


async def test_scrapes_of_a_backend_share_a_connection():
    """One a second must not open one a second."""
    heard = Heard()
    async with scripted_backend(answering(answer()), metrics_page=None) as fake, heard.scraper() as scraper:
        for _ in range(3):
            await scraper.scrape_once(backend_at(fake.url))

        assert (3, 1) == (len(heard.reports), fake.connections)


async def test_a_slow_backend_delays_nobody():
    """All are scraped side by side, each at its own pace, until cancelled."""
    heard = Heard()

    async def silent(_request, connection):
        await connection.until_closed()

    settings = replace(SETTINGS, interval_s=0.02, timeout_s=5.0)
    async with (
        scripted_backend(answering(answer()), metrics_page=None) as fake,
        scripted_backend(silent, metrics_page=None) as slow,
    ):
        backends = (backend_at(fake.url), replace(backend_at(slow.url), name="slow"))
        async with (
            heard.scraper(*backends, settings=settings) as scraper,
            asyncio.timeout(5),
            asyncio.TaskGroup() as tasks,
        ):
            running = tasks.create_task(scraper.run())
            while len(heard.reports) < 3:  # noqa: ASYNC110 - the condition is the scraper's state
                await asyncio.sleep(0.005)
            running.cancel()

        assert 1 == len(slow.seen)
    assert not heard.failures


async def test_pauses_are_jittered_and_make_up_for_the_time_spent():
    """A second from start to start, a tenth more or less."""
    chances = iter((0.0, 0.5, 1.0, 0.5, 0.5))
    async with Heard().scraper(chance=lambda: next(chances)) as scraper:
        pauses = [scraper.next_pause_s(spent_s) for spent_s in (0.0, 0.0, 0.0, 0.25, 3.0)]

    assert [0.9, 1.0, 1.1, 0.75, 0.0] == pauses
