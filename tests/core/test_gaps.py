from hypothesis import given
from hypothesis import strategies as st

from proxy.core.gaps import GAP_BOUNDS_S, GapCounter


def marked(*times: float) -> GapCounter:
    """A counter that has seen token events at these times."""
    gaps = GapCounter()
    gaps.mark(times)
    return gaps


def test_the_first_event_is_no_pause():
    """A pause lies between two events."""
    assert (0, 0.0) == (sum(marked(5.0).counts), marked(5.0).sum_s)


def test_a_pause_as_long_as_a_bound_belongs_below_it():
    """Bounds are upper ones, as in the exported histogram."""
    for index, bound_s in enumerate(GAP_BOUNDS_S):
        assert 1 == marked(0.0, bound_s).counts[index]


def test_what_is_longer_than_the_last_bound_is_counted_too():
    """The last bucket has no upper end."""
    assert 1 == marked(0.0, 3_600.0).counts[-1]
    assert len(GAP_BOUNDS_S) + 1 == len(GapCounter().counts)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.data())
def test_events_are_counted_alike_however_they_are_gathered(pauses_s, data):
    """One by one or in batches, in whichever order the pauses come."""
    times = [0.0]
    for pause_s in pauses_s:
        times.append(times[-1] + pause_s)
    cut = data.draw(st.integers(1, len(pauses_s)))
    alone, gathered = GapCounter(), marked(*times[:cut])
    for time in times:
        alone.mark((time,))
    gathered.mark(times[cut:])

    assert alone.counts == gathered.counts


@given(st.lists(st.floats(0, 100), max_size=50))
def test_every_pause_is_in_exactly_one_bucket(pauses_s):
    """As many counts as pauses, and their sum is the time from the first event to the last."""
    times = [0.0]
    for pause_s in pauses_s:
        times.append(times[-1] + pause_s)
    gaps = marked(*times)

    assert len(pauses_s) == sum(gaps.counts)
    assert abs(times[-1] - gaps.sum_s) < 1e-6
