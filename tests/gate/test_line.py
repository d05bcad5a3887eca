from functools import partial

import pytest

from proxy.core.turns import Rank
from proxy.gate import Gate
from proxy.gate.engine_room import EngineRoom
from proxy.gate.line import Line
from proxy.gate.starts import Starts
from tests.gate.random_walk import RandomWalk
from tests.gate.stage import Stage


class PlainLine(Line):
    """Everybody in order, each once; nobody is left out."""

    def in_order(self, rank, names, now, *, but):
        """See `Line`."""
        served, score = self._lessons.served, self._lessons.score
        entries = self._queue.of(rank) if names else []
        line = [(served(one.fairness_key), score(one, now), at, one) for at, one in enumerate(entries)]
        for *_, one in sorted(line, key=lambda place: place[:3]):
            if one is not but:
                yield one


class PlainStarts(Starts):
    """Tries all that wait, each with a close look."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self._line = PlainLine(self._queue, self._openings, more["lessons"])
        self._openings._is_enforcing = False

    def _restless(self, names):  # noqa: ARG002
        return self._queue.of(Rank.RESIDENT)

    def _overdue(self, rank, now):
        oldest = min(self._queue.of(rank), key=lambda one: one.stamp, default=None)
        return oldest if oldest is not None and now - oldest.stamp > 60.0 else None


@pytest.mark.parametrize("seed", range(8))
def test_who_starts_where_is_what_the_plain_rule_says(seed):
    """Whatever happens: those that are not touched could not have started."""
    walk, plain = RandomWalk(seed), RandomWalk(seed, partial(Gate, starts=PlainStarts))
    for _ in range(1_500):
        walk.step()
        plain.step()
        assert (walk.placed, walk.latest) == (plain.placed, plain.latest)
    assert walk.placed > 200


def numbers_in(stage, *, but=None):
    """Who comes, when nobody is placed."""
    gate = stage.gate
    gate._openings.begin(stage.now)
    return [one.id for one in gate._starts._line.in_order(Rank.SESSION, stage.names, stage.now, but=but)]


def test_only_those_come_that_could_fit_the_smallest_of_the_least_served_key_first():
    """Sixty blocks run: fifty more do not fit."""
    stage = Stage()
    stage.enter("busy", 60, credential="p")
    stage.arrive("large", 50, credential="q")
    middle, small = stage.arrive("middle", 20, credential="q"), stage.arrive("small", 10, credential="q")
    served = stage.arrive("served", 5, credential="r")
    stage.gate.lessons._service.update(q=1.0, r=2.0)

    assert numbers_in(stage) == [small.id, middle.id, served.id]
    assert numbers_in(stage, but=small) == [middle.id, served.id]


def test_nobody_comes_where_nothing_may_be_entered():
    """Whoever has waited longest may keep everything to itself."""
    stage = Stage()
    stage.arrive("small", 10)

    assert list(stage.gate._starts._line.in_order(Rank.SESSION, (), stage.now, but=None)) == []


def test_few_are_looked_at_closely_in_vain(monkeypatch):
    """Hundreds wait that fit nowhere: an end looks at none of them."""
    stage = Stage()
    running = stage.enter("one", 20)
    stage.enter("other", 60)
    for number in range(200):
        stage.arrive(f"large {number}", 60)
    stage.abort(running)
    monkeypatch.setattr(EngineRoom, "fits_set", lambda *_, **__: pytest.fail("looked at in vain"))

    assert stage.pump() == []
