"""The report can be read: one table, a ratio beside two columns, a dash for what is not known."""

import pytest

from proxy.bench.records import RunRecord, TurnRecord
from proxy.bench.summary import summarise
from proxy.bench.table import number, table


def summary(turns):
    """A window of ten seconds with so many turns."""
    done = [TurnRecord(0, 0, is_returning=False, wanted_s=1, sent_s=1, first_s=2, end_s=3) for _ in range(turns)]
    return summarise(RunRecord(1, 0.0, 10.0, turns=done), 5.0)


def row(text, name):
    """One row's cells."""
    return next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name).split()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0.00"), (0.034, "0.03"), (12.34, "12.3"), (9.996, "10.0"), (12_345.6, "12,346")],
)
def test_numbers_have_three_digits(value, text):
    """More would be noise."""
    assert number(value) == text


def test_one_column():
    """What is not known is not zero."""
    text = table(["http://a"], [summary(4)], 5.0)

    assert row(text, "turns/s") == ["0.40", "(24.0/min)"]
    assert row(text, "TTFT p50/p90/p99, holds in")[0] == "1.00"
    assert row(text, "cached part of prompts") == ["-"]
    assert "ratio" not in text


def test_two_columns_and_their_ratio():
    """Of the second to the first; none where the first has nothing."""
    text = table(["http://a", "http://b"], [summary(4), summary(6)], 5.0)

    assert row(text, "turns/s")[-1] == "1.50"
    assert row(text, "sessions finished") == ["0", "0", "-"]
    assert text.splitlines()[0].split() == ["http://a", "http://b", "ratio"]
