"""Sessions repeat by seed, agent and number, and end before they outgrow their limit."""

import pytest

from proxy.bench.plans import DoesNotFitError, Limits, SessionPlan, TurnPlan, Workload


class Fixed:
    """A shape with one session."""

    def __init__(self, *turns, shared_tokens=100):
        self.plan = SessionPlan(shared_tokens, turns)

    def draw(self, rng):
        """That one."""
        rng.random()
        return self.plan


def session(shape, *, is_aged=False, seed=1, agent=0, **limits):
    """One session of a shape, under these limits."""
    return Workload(shape, seed=seed, limits=Limits(**limits)).session(agent, 0, is_aged=is_aged)


def test_a_session_ends_before_its_context_would_pass_the_limit():
    """Prompt and answer together count."""
    turn = TurnPlan(50, 10, 1.0)

    assert len(session(Fixed(turn, turn, turn), context_tokens=220).turns) == 2
    assert len(session(Fixed(turn, turn, turn), context_tokens=219).turns) == 1


def test_a_compaction_makes_room_again():
    """What a turn drops no longer counts."""
    turns = (TurnPlan(500, 10, 0), TurnPlan(50, 10, 0, kept_tokens=100), TurnPlan(400, 10, 0))

    assert len(session(Fixed(*turns), context_tokens=650).turns) == 3


def test_scale_touches_every_size_and_nothing_else():
    """Sizes shrink together, so that ratios stay; pauses have a factor of their own."""
    plan = session(Fixed(TurnPlan(40, 10, 2.0, kept_tokens=60)), scale=0.5)

    assert plan == SessionPlan(50, (TurnPlan(20, 5, 2.0, kept_tokens=30),))


def test_pauses_are_cut_then_scaled():
    """A person's half hour does not outlast the run."""
    plan = session(Fixed(TurnPlan(1, 1, 1_800.0)), longest_think_s=60, think_scale=0.1)

    assert plan.turns[0].think_s == pytest.approx(6.0)


def test_nothing_that_fits_is_said_not_looped_over():
    """A head that is longer than the context."""
    with pytest.raises(DoesNotFitError, match="99 tokens"):
        session(Fixed(TurnPlan(1, 1, 0)), context_tokens=99)


def test_aged_sessions_begin_at_many_different_turns():
    """As if the run had begun long before."""
    shape = Fixed(*[TurnPlan(1, 1, 0)] * 10)

    assert len({session(shape, is_aged=True, agent=agent).past_turns for agent in range(60)}) == 10
    assert session(shape).past_turns == 0
