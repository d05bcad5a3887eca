import pytest

from proxy.core.capacity import KvCapacity
from proxy.core.reports import ScrapeFailure
from proxy.telemetry.report_news import ReportNews

CAPACITY = KvCapacity(total_blocks=10, block_tokens=16)


class Lines:
    """A log that keeps what it is told."""

    def __init__(self):
        self.told = []

    def event(self, event, *, level="info", **fields):
        """Keep it."""
        self.told.append((level, event, fields))


@pytest.fixture
def log():
    """What was told."""
    return Lines()


@pytest.fixture
def up():
    """The backends that pass their probes."""
    return {"a"}


@pytest.fixture
def news(log, up):
    """What is tested."""
    return ReportNews(log, up.__contains__)


def test_capacity_is_told_once(news, log):
    """The first report says what admission found, the hundredth says nothing."""
    for second in range(100):
        news.on_report("a", float(second), CAPACITY)

    assert log.told == [("info", "backend.capacity", {"backend": "a", "tokens": 160, "blocks": 10})]


def test_an_unknown_capacity_is_a_warning(news, log):
    """Once for a page without a size, once for no page at all."""
    news.on_report("a", 0.0, None)
    for second in range(3):
        news.on_failure("b", ScrapeFailure.MISSING, float(second))

    assert [(level, event) for level, event, _ in log.told] == [("warning", "backend.capacity_unknown")] * 2
    assert log.told[1][2] == {"backend": "b", "reason": ScrapeFailure.MISSING.value}


def test_lost_reports_are_told_once_and_so_is_their_return(news, log):
    """A dead page is one line after three seconds, and one when it is back; the next time counts anew."""
    for start in (0.0, 100.0):
        news.on_report("a", start, CAPACITY)
        for second in range(1, 90):
            news.on_failure("a", ScrapeFailure.TIMEOUT, start + second)
    news.on_report("a", 200.0, CAPACITY)

    lost = ("warning", "backend.reports_lost", {"backend": "a", "reason": ScrapeFailure.TIMEOUT.value})
    back = ("info", "backend.reports_back", {"backend": "a"})
    assert log.told[1:] == [lost, back, lost, back]


def test_a_page_that_comes_late_is_no_news(news, log):
    """Two missing reports in a row change nothing for the gate."""
    news.on_report("a", 0.0, CAPACITY)
    for second in (1.0, 2.0, 3.0):
        news.on_failure("a", ScrapeFailure.TIMEOUT, second)
    news.on_report("a", 4.0, CAPACITY)

    assert len(log.told) == 1


def test_a_backend_that_is_down_has_no_second_line(news, log, up):
    """That it is down says it all; but a page that stays away when the backend is back is news."""
    news.on_report("a", 0.0, CAPACITY)
    up.clear()
    news.on_failure("a", ScrapeFailure.UNREACHABLE, 30.0)
    assert len(log.told) == 1

    up.add("a")
    news.on_failure("a", ScrapeFailure.UNREACHABLE, 31.0)
    assert log.told[-1][1] == "backend.reports_lost"
