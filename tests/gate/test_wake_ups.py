import pytest

from proxy.gate.wake_ups import WakeUps
from tests.gate.random_walk import RandomWalk
from tests.gate.stage import Stage

SLACK_S = 0.02
"""What the waiting room adds, so that a time is over when it looks."""


def test_with_nobody_waiting_there_is_no_need_to_look():
    """Whatever is being computed."""
    stage = Stage(batch=8_192)
    stage.ask("one", 12)

    assert stage.gate.next_event_at(stage.now) is None


def test_a_prompt_that_tells_no_first_token_is_computed_after_its_time():
    """Half a second, and half as long again as it should take at 3,000 tokens a second."""
    stage = Stage(blocks=400, batch=8_192)
    stage.ask("first", 12)
    stage.arrive("second", 12)
    assert stage.pump() == []

    at = stage.gate.next_event_at(stage.now) or 0.0

    assert at == pytest.approx(stage.now + 6.5)
    stage.now = at + SLACK_S
    assert stage.pump() == ["second"]


def test_a_large_prompt_passes_the_prefill_gate_after_half_a_minute():
    """Small ones are always being computed; nothing else happens at that moment."""
    stage = Stage(blocks=1_000, batch=2_000)
    stage.ask("first", 5)
    large = stage.arrive("large", 60)
    stage.wait(29.5, reports=False)
    stage.ask("second", 5)
    assert large.id not in stage.placed

    at = stage.gate.next_event_at(stage.now) or 0.0

    assert at == pytest.approx(large.arrived_at + 30)
    stage.now = at + SLACK_S
    assert stage.pump() == ["large"]


def test_the_head_reservation_begins_by_itself():
    """A minute after it first came, refusals with a ticket in between counted."""
    stage = Stage()
    stage.enter("busy", 90)
    early = stage.arrive("early", 30)
    stage.wait(20)
    stage.gate.give_up(early, stage.now, keeps_ticket=True)
    stage.wait(20)
    back = stage.arrive("early", 30)
    stage.wait(15)
    assert stage.pump() == []

    assert stage.gate.next_event_at(stage.now) == pytest.approx(back.stamp + 60)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_of_each_backend_is_what_would_be_found_now(seed):
    """Whatever happens: a moment that was missed would leave somebody waiting for the next report."""
    walk = RandomWalk(seed)
    gate = walk.gate
    for _ in range(1_500):
        walk.step()
        kept = gate.next_event_at(walk.now)
        anew = WakeUps(gate.rooms).next(gate.queue, gate._herd, walk.now, changed=gate.rooms)
        assert kept == (anew if len(gate.queue) else None)


def test_an_engine_that_has_said_that_it_is_full_is_looked_at_again():
    """Nothing else tells when it is believed no more."""
    stage = Stage()
    stage.enter("busy", 90)
    stage.arrive("next", 30)
    stage.gate.next_event_at(stage.now)
    stage.wait(0.5, reports=False)
    stage.gate.see_overload("a", stage.now)

    assert stage.gate.next_event_at(stage.now) == stage.now + 3.0
