import re
from pathlib import Path

import pytest

from proxy.core.outcomes import Outcome
from proxy.core.turns import PrefixBreak
from proxy.gate.evictions import Corrections
from proxy.telemetry.logs import configure
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.recorder import FinishedRequestRecorder
from tests.telemetry.fleets import fleet
from tests.telemetry.records import finished

ADMITTED = {
    "admission": "new",
    "queue": "session",
    "queue_wait_s": 1.5,
    "herd_wait_s": 0.5,
    "would_wait": True,
    "estimated_tokens": 110,
    "expected_tokens": 64,
    "prefix_break": "system",
}

PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
SUFFIX = {"counter": "_total"}


def rows_of(heading: str) -> list[list[str]]:
    """The cells of each table row below a heading, without the table's head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.fixture
def families():
    """Every family of ours after one request of which everything is known."""
    metrics = Metrics(
        version="1",
        snapshot=fleet,
        buffered_body_bytes=int,
        open_connections=int,
        dropped_log_lines=int,
    )
    metrics.record(finished(retries={"connect": 1}, **ADMITTED))
    metrics.record(finished(outcome=Outcome.REFUSED_OVERLOADED))
    metrics.count_kv_events("a", Corrections(stored=1, evicted_sessions=1))
    metrics.count_kv_event_gap("a", is_filled=True)
    return [family for family in metrics.registry.collect() if family.name.startswith("tidegate_")]


def test_each_metric_has_a_row_with_its_kind_and_labels(families):
    """The page and the registry name the same metrics, kinds and labels."""
    registered = {
        (
            family.name + SUFFIX.get(family.type, ""),
            family.type,
            frozenset(label for sample in family.samples for label in sample.labels if label != "le"),
        )
        for family in families
    }
    documented = {
        (name.strip("`"), kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in rows_of("The metrics")
    }

    assert documented == registered


def test_each_metric_is_explained(families):
    """No row is empty, and each metric explains itself on the page of a scraper too."""
    assert all(len(meaning) > 40 for *_, meaning in rows_of("The metrics"))
    assert all(len(family.documentation) > 10 for family in families)


def test_every_ending_has_a_row():
    """The page lists exactly the members of the enum."""
    documented = [row[0].strip("`") for row in rows_of("Endings")]

    assert sorted(documented) == sorted(outcome.value for outcome in Outcome)


def test_every_reason_of_a_broken_prefix_is_explained():
    """The row names exactly the members of the enum."""
    (meaning,) = [row[3] for row in rows_of("The metrics") if row[0] == "`tidegate_prefix_breaks_total`"]

    assert {reason.value for reason in PrefixBreak} <= set(re.findall(r"`(\w+)`", meaning))


def test_every_metric_that_the_page_mentions_exists(families):
    """Queries on the page can be pasted."""
    mentioned = set(re.findall(r"tidegate_\w+", PAGE))
    known = {family.name + suffix for family in families for suffix in ("", "_total", "_bucket", "_sum", "_count")}

    assert mentioned - known == set()


def test_every_field_of_the_log_line_is_named(tmp_path):
    """What a line can hold stands on the page."""
    path = tmp_path / "log"
    with path.open("w") as stream:
        log = configure("json", "info", stream)
        FinishedRequestRecorder(Metrics(version="1"), log).record(finished(retries={"a": 1}, note="x", **ADMITTED))
        assert log.close()
    section = PAGE.split("\n## The log line\n")[1]

    fields = set(re.findall(r'"(\w+)":', path.read_text())) - {"timestamp", "level", "event", "a"}
    assert fields <= set(re.findall(r"`(\w+)`", section))
