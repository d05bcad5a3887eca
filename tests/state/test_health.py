from proxy.state.health import HealthTable, Probe


def table():
    """A table that watches one backend."""
    health = HealthTable(fall=3)
    health.add("a")
    return health


def test_a_backend_may_be_tried_until_something_is_seen_of_it():
    """Nothing is known at the start; that is no reason to refuse."""
    assert table().is_up("a")


def test_a_refused_connection_puts_a_backend_out_at_once_and_one_success_brings_it_back():
    """L55: a dead engine answers nothing; one that answers is back."""
    health = table()

    assert health.on_probe("a", Probe.DOWN)
    assert not health.is_up("a")
    assert health.on_probe("a", Probe.OK)
    assert health.is_up("a")
    assert not health.on_probe("a", Probe.OK)


def test_only_three_timeouts_in_a_row_put_a_backend_out():
    """L55: a saturated engine answers late; that alone does not eject it."""
    health = table()

    for probe in (Probe.TIMEOUT, Probe.TIMEOUT, Probe.OK, Probe.TIMEOUT, Probe.TIMEOUT):
        health.on_probe("a", probe)
    assert health.is_up("a")
    assert health.on_probe("a", Probe.TIMEOUT)
    assert not health.is_up("a")


def test_a_timeout_does_not_bring_a_dead_backend_back():
    """Silence is no proof of life."""
    health = table()
    health.on_probe("a", Probe.DOWN)

    health.on_probe("a", Probe.TIMEOUT)

    assert not health.is_up("a")


def test_a_failed_connect_counts_like_a_failed_probe():
    """Traffic notices a dead backend before the next probe does."""
    health = table()

    assert health.on_connect_failure("a")
    assert not health.is_up("a")
    assert not health.on_connect_failure("a")
