import io
import json

import pytest

from proxy.core.outcomes import Outcome
from proxy.core.ports import Recorder
from proxy.core.requests import Usage
from proxy.telemetry.logs import configure
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.recorder import FinishedRequestRecorder, level_of
from tests.telemetry.records import finished


def written_by(record, metrics=None):
    """The lines that one record leaves in the log."""
    stream = io.StringIO()
    log = configure("json", "debug", stream)
    recorder: Recorder = FinishedRequestRecorder(metrics or Metrics(version="1"), log)
    recorder.record(record)
    assert log.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_record_is_one_line():
    """The line carries the numbers behind the metrics."""
    admission = {"admission": "new", "queue": "session", "queue_wait_s": 12.5, "herd_wait_s": 1.5, "would_wait": True}
    sizes = {"estimated_tokens": 120, "expected_tokens": 80, "prefix_break": "tools"}
    (line,) = written_by(finished(retries={"connect": 1}, note="second try", **admission, **sizes))

    del line["timestamp"]
    assert line == {
        "level": "info",
        "event": "request.finished",
        "request_id": "req-1",
        "route": "chat_completions",
        "model": "qwen",
        "backend": "a:8000",
        "outcome": "completed",
        "status": 200,
        "is_stream": True,
        "duration_s": 1.5,
        "ttft_s": 0.2,
        "overhead_s": 0.0004,
        **admission,
        **sizes,
        "prompt_tokens": 100,
        "cached_tokens": 50,
        "completion_tokens": 3,
        "request_bytes": 1000,
        "response_bytes": 2000,
        "retries": {"connect": 1},
        "note": "second try",
        "prefix": "warm",
    }


def test_a_stream_that_was_opened_early_is_told_beside_its_ending():
    """The status alone would look like success."""
    (line,) = written_by(finished(outcome=Outcome.REFUSED_OVERLOADED, queue="session", is_open_early=True))

    assert (line["outcome"], line["status"], line["early_stream"]) == ("refused_overloaded", 200, True)


def test_what_is_not_known_is_left_out():
    """Not reported is neither null nor zero."""
    (line,) = written_by(finished(usage=Usage(), ttft_s=None, overhead_s=None, backend=None))

    assert not line.keys() & {"prompt_tokens", "cached_tokens", "completion_tokens", "ttft_s", "overhead_s", "backend"}
    assert not line.keys() & {"retries", "note", "admission", "queue", "queue_wait_s", "herd_wait_s", "would_wait"}
    assert "early_stream" not in line


@pytest.mark.parametrize("outcome", Outcome)
def test_the_level_says_whose_fault_it_was(outcome):
    """Only what somebody must look at is above info."""
    (line,) = written_by(finished(outcome=outcome))

    assert line["level"] == level_of(outcome)
    assert (line["level"] == "error") == (outcome is Outcome.INTERNAL_ERROR)
    assert (line["level"] == "warning") == (outcome.value.startswith("upstream_error") or outcome is Outcome.TRUNCATED)


def test_the_metrics_get_the_same_record():
    """One record, two sinks."""
    metrics = Metrics(version="1")
    written_by(finished(), metrics)

    page, _ = metrics.exposition("", now=0.0)
    assert b'outcome="completed"' in page


def test_a_failing_sink_neither_raises_nor_costs_the_line():
    """Counts over the wrong buckets are a fault of ours; the request's line is still written, and so is the fault."""
    lines = written_by(finished(gap_counts=(1, 2)))

    assert [(line["event"], line["level"]) for line in lines] == [
        ("recorder.failed", "error"),
        ("request.finished", "info"),
    ]


def test_hostile_values_cannot_break_the_line():
    """A request id or a note from outside stays one bounded, printable field."""
    (line,) = written_by(finished(request_id="a\r\n\x1b[0m" * 500, note="\ud800" * 500))

    assert line["request_id"].isprintable()
    assert len(json.dumps(line)) < 5000


def test_a_rank_is_told_where_there_are_several():
    """The first one too."""
    (ranked,), (plain,) = written_by(finished(rank=0)), written_by(finished())

    assert ranked["rank"] == 0
    assert "rank" not in plain
