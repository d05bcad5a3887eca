import pytest

from tests.bench.load import Figures
from tests.bench.report import METRICS, TARGETS, Summary
from tests.bench.run import NGINX, PLAIN, TIDEGATE, Sample

_BY_KEY = {metric.key: metric for metric in METRICS}


def _requests(proxy: str, repetition: int, cpu_us: float) -> Sample:
    return Sample(proxy, "requests", repetition, Figures(units=1000, cpu_s=cpu_us / 1000, window_s=1.0))


def _latency(proxy: str, p50_ms: float, floor_ms: float) -> Sample:
    return Sample(proxy, "latency", 0, Figures(units=100, p50_s=p50_ms / 1e3, floor_p50_s=floor_ms / 1e3))


def test_ratios_are_made_inside_a_repetition():
    """Neighbours that slow one repetition down for both sides do not show in the ratio."""
    figures = [(PLAIN, 0, 100), (TIDEGATE, 0, 60), (PLAIN, 1, 300), (TIDEGATE, 1, 150), (PLAIN, 2, 100)]
    summary = Summary([_requests(*each) for each in figures], [TIDEGATE])
    ratio = summary.ratio(_BY_KEY["cpu_per_request"], TIDEGATE, PLAIN)

    assert ratio is not None
    assert (ratio.least, ratio.most) == pytest.approx((0.5, 0.6))


def test_added_latency_is_over_the_floor_that_the_same_load_met():
    """What the load takes past the proxy is taken off; where the peer added nothing there is no ratio."""
    samples = [_latency(TIDEGATE, 0.8, floor_ms=0.2), _latency(PLAIN, 1.3, floor_ms=1.0), _latency(NGINX, 0.1, 0.2)]
    summary = Summary(samples, [TIDEGATE])
    added = _BY_KEY["added_p50"]

    assert summary.values(added, TIDEGATE) == pytest.approx({0: 0.6})
    assert str(summary.ratio(added, TIDEGATE, PLAIN)) == "2.00 (2.00-2.00)"
    assert summary.ratio(added, TIDEGATE, NGINX) is None


@pytest.mark.parametrize(("cpu_us", "is_missed"), [(100, False), (101, True)])
def test_a_target_is_missed_above_its_limit(cpu_us, is_missed):
    """The limit itself passes; what was not measured is neither."""
    verdicts = Summary([_requests(PLAIN, 0, 100), _requests(TIDEGATE, 0, cpu_us)], [TIDEGATE]).verdicts()

    assert [verdict.is_missed for verdict in verdicts] == [is_missed, False, False]
    assert [verdict.ratio is None for verdict in verdicts] == [False, True, True]
    assert [verdict.target for verdict in verdicts] == list(TARGETS)


def test_streams_that_lag_behind_are_noted():
    """Late chunks travel together and cost less, so a slow run must not pass in silence."""
    lagging = Sample(TIDEGATE, "sse_64", 0, Figures(units=1600, cpu_s=0.1, window_s=1.0))
    steady = Sample(PLAIN, "sse_64", 0, Figures(units=3200, cpu_s=0.1, window_s=1.0))
    notes = Summary([lagging, steady], [TIDEGATE]).notes()

    assert len(notes) == 1
    assert "tidegate, 64 streams x 20 ms, repetition 1: 50% of the pace" in notes[0]
