import pytest
from prometheus_client import CollectorRegistry

from proxy.telemetry.counters import Counter


def samples_of(counter):
    """Every sample of a counter by its name and labels."""
    return {(one.name, *one.labels.values()): one.value for family in counter.collect() for one in family.samples}


def test_each_label_set_is_counted_apart():
    """One series a label set, named as Prometheus names counters."""
    counter = Counter("c", "", ["model", "kind"])
    counter.inc("m", "prompt", by=7)
    counter.inc("m", "prompt")
    counter.inc("m", "cached")

    assert samples_of(counter) == {("c_total", "m", "prompt"): 8, ("c_total", "m", "cached"): 1}


def test_the_number_of_labels_is_checked():
    """A series with a label too few cannot be made."""
    counter = Counter("c", "", ["model", "kind"])

    with pytest.raises(ValueError, match="c has the labels"):
        counter.inc("m")
    assert samples_of(counter) == {}


def test_it_never_falls():
    """A counter that fell would look like a restart."""
    counter = Counter("c", "", ["model"])
    counter.inc("m")

    with pytest.raises(ValueError, match="only ever grows"):
        counter.inc("m", by=-1)
    assert samples_of(counter) == {("c_total", "m"): 1}


def test_two_of_one_name_cannot_be_registered():
    """The registry knows its name before anything is counted."""
    registry = CollectorRegistry()
    registry.register(Counter("c", "", ["model"]))

    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Counter("c", "", ["model"]))
