import io
import json

import pytest

from proxy.core.capacity import KvCapacity
from proxy.core.reports import ScrapeFailure
from proxy.gate.reporting import EngineChange
from proxy.telemetry.logs import configure
from proxy.telemetry.report_log import ReportLog

SMALL = KvCapacity(total_blocks=100, block_tokens=16)
LARGE = KvCapacity(total_blocks=200, block_tokens=16)


def told_of(*scrapes, known=None):
    """What the log says of these scrapes: a second, and a capacity (or None), a change or a failure of that second."""
    stream = io.StringIO()
    log = configure("json", "debug", stream)
    reports = ReportLog(log, stale_after_s=3.0)
    for now, what in scrapes:
        if isinstance(what, ScrapeFailure):
            reports.failed("a", known, what, now)
        elif isinstance(what, EngineChange):
            reports.came("a", SMALL, what, now)
        else:
            reports.came("a", what, None, now)
    assert log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [{name: value for name, value in line.items() if name != "timestamp"} for line in lines]


def test_the_number_of_ranks_is_told_when_it_changes():
    """One engine is nothing to tell of."""
    stream = io.StringIO()
    log = configure("json", "debug", stream)
    reports = ReportLog(log, stale_after_s=3.0)
    for now, ranks in enumerate((1, 4, 4, 1)):
        reports.came("a", SMALL, None, float(now), ranks=ranks)
    assert log.close()

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["ranks"] for line in lines if line["event"] == "backend.ranks"] == [4, 1]


def events_of(*scrapes):
    """The names of the events alone."""
    return [line["event"] for line in told_of(*scrapes)]


def test_a_silence_is_two_lines_however_long_it_is():
    """One when it begins to count and one when it ends; a single lost page is none."""
    lost = ((second, ScrapeFailure.TIMEOUT) for second in range(2, 600))
    lines = told_of((0, SMALL), (1, ScrapeFailure.TIMEOUT), (1.5, SMALL), *lost, (600, SMALL), (601, SMALL))

    assert lines[1:] == [
        {"level": "warning", "event": "backend.report_stale", "backend": "a", "reason": "timeout"},
        {"level": "info", "event": "backend.report_fresh", "backend": "a", "silent_s": 598.5},
    ]


def test_a_size_is_told_when_it_is_found_and_when_it_changes():
    """Another model behind the same address is news; the same size again is none."""
    lines = told_of((0, SMALL), (1, SMALL), (2, LARGE), (3, None))

    assert [(line["event"], line.get("tokens")) for line in lines] == [
        ("backend.capacity", 1_600),
        ("backend.capacity", 3_200),
        ("backend.capacity_unknown", None),
    ]


def test_a_size_that_is_found_late_is_told():
    """An engine that shows its labels only after its first request."""
    assert events_of((0, None), (1, None), (2, SMALL)) == ["backend.capacity_unknown", "backend.capacity"]


@pytest.mark.parametrize("why", [ScrapeFailure.STATUS, ScrapeFailure.NOT_AN_ENGINE, ScrapeFailure.UNREACHABLE])
def test_a_page_that_never_comes_is_told_after_a_while(why):
    """A key that is asked for, a page of something else: nobody would look for that in a proxy that lets all pass."""
    assert events_of((0, why), (1, why)) == []
    lines = told_of(*((second, why) for second in range(20)))

    assert [(line["event"], line["reason"]) for line in lines] == [("backend.capacity_unknown", why.value)]


def test_a_size_from_the_configuration_is_told_instead():
    """Nobody is warned of what is known."""
    (line,) = told_of((0, ScrapeFailure.MISSING), (1, ScrapeFailure.MISSING), known=SMALL)

    assert (line["event"], line["tokens"]) == ("backend.capacity", 1_600)


def test_a_page_that_is_not_there_is_told_at_once():
    """It will not come."""
    assert events_of((0, ScrapeFailure.MISSING), (1, ScrapeFailure.MISSING)) == ["backend.capacity_unknown"]


@pytest.mark.parametrize("change", EngineChange)
def test_what_becomes_of_an_engine_is_a_line(change):
    """Its sessions are cold from then on."""
    assert events_of((0, SMALL), (1, change), (2, SMALL)) == ["backend.capacity", f"backend.{change.value}"]


def test_a_cap_on_turns_is_told_when_it_comes_changes_and_goes():
    """The knee guard's; the same cap again is no news."""
    stream = io.StringIO()
    log = configure("json", "debug", stream)
    reports = ReportLog(log, stale_after_s=3.0)
    for now, cap in enumerate((None, 9, 9, 5, None, None)):
        reports.came("a", SMALL, None, float(now), turn_cap=cap)
    assert log.close()

    lines = [json.loads(line) for line in stream.getvalue().splitlines()][1:]
    assert [(line["event"], line.get("turns")) for line in lines] == [
        ("backend.turn_cap", 9),
        ("backend.turn_cap", 5),
        ("backend.turn_cap_lifted", None),
    ]


def test_a_prefix_cache_that_does_nothing_is_told_once_and_so_is_its_return():
    """However many reports come in between."""
    stream = io.StringIO()
    log = configure("json", "debug", stream)
    reports = ReportLog(log, stale_after_s=3.0)
    for now, is_inert in enumerate((False, True, True, False, False)):
        reports.came("a", SMALL, None, float(now), is_prefix_cache_inert=is_inert)
    assert log.close()

    lines = [json.loads(line) for line in stream.getvalue().splitlines()][1:]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("backend.prefix_cache_inert", "warning"),
        ("backend.prefix_cache_works", "info"),
    ]
