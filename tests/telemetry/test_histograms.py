import pytest
from prometheus_client import CollectorRegistry

from proxy.telemetry.histograms import Histogram


def samples_of(histogram):
    """Every sample of a histogram by its name and labels."""
    return {(one.name, *one.labels.values()): one.value for family in histogram.collect() for one in family.samples}


def test_buckets_are_cumulative_and_their_bounds_inclusive():
    """A value on a bound belongs to that bound's bucket, as Prometheus has it."""
    histogram = Histogram("h_seconds", "", ["model"], [0.5, 1.0])
    for value in (0.1, 0.5, 0.7, 9.0):
        histogram.observe(value, "m")

    assert samples_of(histogram) == {
        ("h_seconds_bucket", "m", "0.5"): 2,
        ("h_seconds_bucket", "m", "1.0"): 3,
        ("h_seconds_bucket", "m", "+Inf"): 4,
        ("h_seconds_count", "m"): 4,
        ("h_seconds_sum", "m"): pytest.approx(10.3),
    }


def test_counts_made_elsewhere_are_added():
    """A stream's own counts and single observations meet in one series."""
    histogram = Histogram("h_seconds", "", [], [0.5, 1.0])
    histogram.observe(0.1)
    histogram.merge((1, 0, 2), 21.0)

    assert samples_of(histogram)["h_seconds_count",] == 4
    assert samples_of(histogram)["h_seconds_bucket", "0.5"] == 2
    assert samples_of(histogram)["h_seconds_sum",] == pytest.approx(21.1)


def test_without_labels_it_starts_at_zero():
    """A metric that nothing has happened to is there, so that an alert on it can work."""
    assert samples_of(Histogram("h_seconds", "", [], [1.0]))["h_seconds_count",] == 0
    assert samples_of(Histogram("h_seconds", "", ["model"], [1.0])) == {}


def test_counts_over_other_buckets_are_refused():
    """Counts that would land in wrong buckets are an error and change nothing."""
    histogram = Histogram("h_seconds", "", [], [1.0])

    with pytest.raises(ValueError, match="zip"):
        histogram.merge((1, 2, 3), 1.0)
    assert samples_of(histogram)["h_seconds_count",] == 0


def test_the_number_of_labels_is_checked():
    """A series with a label too few cannot be made."""
    with pytest.raises(ValueError, match="h_seconds has the labels"):
        Histogram("h_seconds", "", ["route", "model"], [1.0]).observe(1.0, "chat")


def test_two_of_one_name_cannot_be_registered():
    """The registry knows its name before anything is counted."""
    registry = CollectorRegistry()
    registry.register(Histogram("h_seconds", "", [], [1.0]))

    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Histogram("h_seconds", "", [], [1.0]))
