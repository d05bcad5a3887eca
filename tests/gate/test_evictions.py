import pytest

from proxy.engines.kv_events import AllCleared, Batch, BlocksRemoved, BlocksStored
from proxy.gate.evictions import Corrections, EvictionWatch
from proxy.state.sessions import Residency
from tests.gate.stage import Stage

WALL = 1_700_000_000.0
"""The engine's clock at the stage's time 0."""


class Scene(Stage):
    """A stage whose engine tells of its blocks."""

    def __init__(self, *names, is_one_engine=True, **more):
        super().__init__(*names, **more)
        self.watch = EvictionWatch(self.gate, is_one_engine=lambda _: is_one_engine)

    def tell(self, *events, late_s=0.0):
        """A batch comes now that was sent a while ago."""
        return self.watch.take("a", Batch(WALL + self.now - late_s, list(events)), self.now)

    def store(self, *blocks, **more):
        """Blocks are stored now."""
        return self.tell(BlocksStored(list(blocks), 16, "GPU", 0), **more)

    def remove(self, *blocks, **more):
        """Blocks are given away now."""
        return self.tell(BlocksRemoved(list(blocks), "GPU", 0), **more)

    def rest_and_store(self, session, block, blocks=20):
        """A whole turn, at the end of which its last block is stored."""
        self.store(block)
        self.rest(session, blocks)
        self.wait(10)


def residencies(scene, *names):
    """Who is in."""
    return [scene.session(name).residency for name in names]


def test_who_was_idle_before_the_horizon_has_lost_its_place():
    """The engine gave away a block that is younger than the end of its turn."""
    scene = Scene()
    for number, name in enumerate(("first", "second", "third")):
        scene.rest_and_store(name, number)
    corrections = scene.remove(0, 1)

    assert corrections == Corrections(removed=2, evicted_sessions=1)
    assert residencies(scene, "first", "second", "third") == [Residency.OUT, Residency.IN, Residency.IN]
    assert scene.ledger().idle_of(scene.session("first")) == 0
    assert scene.ledger().idle_of(scene.session("second")) > 0


def test_its_next_turn_needs_a_place_and_is_no_ghost():
    """It is not believed warm, so that it cannot disappoint."""
    scene = Scene()
    scene.rest_and_store("first", 0)
    scene.rest_and_store("second", 1)
    scene.remove(0, 1)
    placement = scene.enter("first", 21)
    scene.finish(placement, cached=0)

    assert (placement.admission, placement.expected_tokens) == ("returning", 0)
    assert scene.room().ghost_misses == 0


def test_the_loss_of_a_resident_that_was_believed_safe_lowers_the_limit():
    """It replaces the ghost miss: without it nothing would tell that the engine holds less than is believed."""
    scene = Scene()
    scene.rest_and_store("first", 0)
    scene.rest_and_store("second", 1)
    theta = scene.room().limit.theta
    scene.remove(1)

    assert scene.room().limit.theta == pytest.approx(0.95 * theta)


def test_the_loss_of_one_whose_lease_is_over_lowers_nothing():
    """The ledger knew that it may go."""
    scene = Scene()
    scene.rest_and_store("first", 0)
    scene.wait(1_000)
    scene.rest_and_store("second", 1)
    theta = scene.room().limit.theta
    corrections = scene.remove(1)

    assert corrections.evicted_sessions == 1
    assert scene.room().limit.theta == theta


def test_the_loss_of_a_small_one_lowers_nothing():
    """As with ghost misses."""
    scene = Scene()
    scene.rest_and_store("first", 0, blocks=3)
    scene.rest_and_store("second", 1)
    theta = scene.room().limit.theta

    assert scene.remove(1).evicted_sessions == 1
    assert scene.room().limit.theta == theta


def test_running_turns_keep_their_place():
    """What they use is not given away."""
    scene = Scene()
    running = scene.enter("first", 20)
    scene.wait(10)
    scene.rest_and_store("second", 1)
    scene.remove(1)

    assert residencies(scene, "first") == [Residency.IN]
    scene.finish(running)


def test_who_ended_just_before_the_horizon_is_left():
    """An engine lets go a little later than an answer ends."""
    scene = Scene()
    scene.store(0)
    scene.rest("first", 20)
    scene.wait(0.5)
    scene.rest_and_store("second", 1)

    assert scene.remove(1).evicted_sessions == 0


def test_a_batch_that_comes_late_has_the_time_at_which_it_was_sent():
    """What is sent again was stored long ago; by its arrival everybody would be gone."""
    scene = Scene()
    scene.store(0)
    scene.rest("first", 20)
    scene.wait(60)
    scene.store(1, late_s=60)

    assert scene.remove(1).evicted_sessions == 0


def test_a_clock_that_jumps_ahead_does_not_reach_into_the_future():
    """The wall clock of an engine may be set."""
    scene = Scene()
    scene.store(0, late_s=-3_600)
    scene.rest("first", 20)
    scene.wait(10)
    scene.store(1)

    assert scene.remove(1, late_s=-7_200).evicted_sessions == 0
    assert residencies(scene, "first") == [Residency.IN]


def test_a_cleared_cache_leaves_nobody_and_no_lower_limit():
    """Somebody asked for it: the size was right."""
    scene = Scene()
    for number, name in enumerate(("first", "second")):
        scene.rest_and_store(name, number)
    theta = scene.room().limit.theta
    corrections = scene.tell(AllCleared())

    assert corrections == Corrections(cleared=1, cleared_sessions=2)
    assert residencies(scene, "first", "second") == [Residency.OUT, Residency.OUT]
    assert scene.room().limit.theta == theta
    assert scene.used() == 0


def test_a_turn_that_was_on_its_way_when_the_cache_was_cleared_is_no_ghost():
    """It was sent to a warm engine."""
    scene = Scene()
    scene.rest_and_store("first", 0)
    placement = scene.enter("first", 21)
    scene.wait(1)
    scene.tell(AllCleared())
    theta = scene.room().limit.theta
    scene.finish(placement, cached=0)

    assert placement.expected_tokens > 0
    assert scene.room().limit.theta == theta


def test_a_cleared_cache_is_no_other_process():
    """What was learned of the engine's pace stays."""
    scene = Scene()
    scene.room().external.on_report(1_000_000, 1_000_000)
    ratio = scene.room().external.ratio
    scene.tell(AllCleared())

    assert scene.room().external.ratio == ratio is not None
    assert scene.gate.counters["restarts"] == 0


def test_what_was_stored_before_a_clearing_is_not_kept():
    """Nobody will tell of its removal."""
    scene = Scene()
    scene.store(0, 1, 2)
    scene.tell(AllCleared(), BlocksStored([3], 16, "GPU", 0))

    assert len(scene.watch._tracks["a"].horizon) == 1


@pytest.mark.parametrize(("is_one_engine", "group", "medium"), [(False, 0, "GPU"), (True, 1, "GPU"), (True, 0, "CPU")])
def test_evictions_that_may_not_mean_it_correct_nothing(is_one_engine, group, medium):
    """One of several engines, a hybrid one, and a tier behind the cache."""
    scene = Scene(is_one_engine=is_one_engine)
    scene.rest("first", 20)
    scene.wait(10)
    scene.tell(BlocksStored([1], 16, medium, group))
    corrections = scene.tell(BlocksRemoved([1], medium, group))

    assert corrections.evicted_sessions == 0
    assert residencies(scene, "first") == [Residency.IN]


def test_forgetting_means_learning_anew():
    """Something was missed."""
    scene = Scene()
    scene.rest_and_store("first", 0)
    scene.rest_and_store("second", 1)
    scene.watch.forget("a")
    assert scene.remove(1).evicted_sessions == 0

    scene.rest_and_store("third", 2)
    assert scene.remove(2).evicted_sessions == 2
