import pytest

from proxy.core.turns import Rank
from tests.gate.random_walk import RandomWalk
from tests.gate.stage import Stage


class DirectWalk(RandomWalk):
    """Who comes is tried before it is in the queue."""

    def _come(self, turn, candidates):
        gate, now = self.gate, self.now
        waiting, placement, was_tried = gate.admit(
            turn, candidates, now, open_names=candidates, body_bytes=turn.text_bytes
        )
        if was_tried:
            return waiting, [placement] if placement else []
        return waiting, gate.pump(now, candidates, arrival=waiting)


@pytest.mark.parametrize("seed", range(4))
def test_the_short_way_places_the_same_as_the_queue(seed):
    """Whoever can start at once starts where, when and as what it would have started."""
    walks = RandomWalk(seed), DirectWalk(seed)
    for _ in range(2_500):
        for walk in walks:
            walk.step()
        assert walks[0].latest == walks[1].latest
        assert walks[0].gate.next_event_at(walks[0].now) == walks[1].gate.next_event_at(walks[1].now)

    assert walks[0].placed == walks[1].placed > 450


def test_what_starts_at_once_was_never_in_the_queue():
    """And what cannot waits there."""
    stage = Stage()
    first, placement, _ = stage.gate.admit(stage.turn("one", 90), stage.names, stage.now, open_names=stage.names)
    second, none, was_tried = stage.gate.admit(stage.turn("two", 90), stage.names, stage.now, open_names=stage.names)

    assert placement is not None
    assert placement.waiting is first
    assert (none, was_tried) == (None, True)
    assert list(stage.gate.queue) == [second]


def test_a_request_is_known_for_what_it_is_before_it_is_tried():
    """Its class, its size, and the place that a refusal left it."""
    stage = Stage()
    stage.rest("one", 10)
    back = stage.arrive("one", 11)
    assert (back.rank, back.prompt_tokens) == (Rank.RESIDENT, 11_000)
    stage.gate.give_up(back, stage.now, keeps_ticket=True)
    stage.wait(20)

    again = stage.arrive("one", 11)

    assert again.has_ticket
    assert again.stamp == back.stamp
