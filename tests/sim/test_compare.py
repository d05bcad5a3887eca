"""The simulation stays within its bounds of what was measured."""

import pytest

from proxy.sim.compare import compare_card, compare_h200, compare_queue_starts


def test_card_throughput():
    """Users' machine A: tokens per second within 10 % at every MTP depth and load (20 % were demanded, at MTP 0)."""
    rows = [row for row in compare_card() if row.unit == "tok/s"]
    assert len(rows) == 26
    assert {f"{row.sweep} x{row.load}: {row.ratio:.2f}" for row in rows if abs(row.ratio - 1) > 0.10} == set()


def test_card_latency():
    """Users' machine A: mean latency within 10 %, so queued requests wait as long as theirs did."""
    assert all(abs(row.ratio - 1) < 0.10 for row in compare_card() if row.unit == "latency s")


def test_queue_starts():
    """At each MTP depth queueing starts between the same two levels as measured."""
    starts = list(compare_queue_starts())
    assert [start.mtp for start in starts] == [0, 1, 2, 3]
    assert all(start.is_inside for start in starts)


def test_h200_plain_sweep():
    """H200: tokens per second within 20 % at every level."""
    rows = [row for row in compare_h200() if row.unit == "tok/s"]
    assert [row.load for row in rows] == [1, 4, 8, 16, 32, 64, 128]
    assert all(row.ratio == pytest.approx(1, abs=0.20) for row in rows)
