from proxy.core.turns import StopReason
from tests.gate.stage import Stage


def test_a_ticket_keeps_the_place():
    """A session that was refused after its hold comes back as who it was."""
    stage = Stage()
    stage.enter("busy", 90)
    early = stage.arrive("early", 30)
    stage.wait(100)
    stage.arrive("late", 30)
    stage.wait(140)

    assert stage.gate.give_up(early, stage.now, keeps_ticket=True)
    assert not stage.gate.give_up(early, stage.now, keeps_ticket=True)
    stage.wait(1)
    back = stage.arrive("early", 30)

    assert back.stamp == early.stamp == 1_000.0
    assert back.arrived_at == stage.now
    assert stage.gate.counters["tickets_issued"] == 1


def test_a_ticket_runs_out():
    """After a minute and a half it is a newcomer again."""
    stage = Stage()
    stage.enter("busy", 90)
    early = stage.arrive("early", 30)
    stage.gate.give_up(early, stage.now, keeps_ticket=True)
    stage.wait(91)

    assert stage.arrive("early", 30).stamp == stage.now


def test_the_ticket_of_who_left_runs_out_sooner():
    """Half a minute: whoever closed the connection and wants to go on is back at once."""
    for away_s, is_kept in ((29, True), (31, False)):
        stage = Stage()
        stage.enter("busy", 90)
        early = stage.arrive("early", 30)
        stage.gate.give_up(early, stage.now, keeps_ticket=True, has_left=True)
        stage.wait(away_s)

        assert (stage.arrive("early", 30).stamp == early.stamp) is is_kept


def test_leaving_takes_nothing_from_a_place_that_was_promised_for_longer():
    """One turn of the session was refused, another one's client left: the older place, for the longer time."""
    stage = Stage()
    stage.enter("busy", 90)
    early = stage.arrive("one", 30)
    stage.wait(5)
    late = stage.arrive("one", 31)
    stage.gate.give_up(early, stage.now, keeps_ticket=True)
    stage.gate.give_up(late, stage.now, keeps_ticket=True, has_left=True)
    stage.wait(60)

    assert stage.arrive("one", 31).stamp == early.stamp


def test_a_resend_takes_the_place_of_its_copy():
    """L22: the older one waits no more, and the newer one has its stamp."""
    stage = Stage()
    stage.enter("busy", 90)
    first = stage.arrive("one", 30, twin=7)
    stage.wait(50)
    second = stage.arrive("one", 30, twin=7)

    assert second.replaced is first
    assert second.stamp == first.stamp
    assert list(stage.gate.queue) == [second]
    assert stage.session("one").waiting == 1


def test_the_same_turn_without_a_name_is_another_request():
    """Two strangers may ask the same."""
    stage = Stage()
    stage.enter("busy", 90)
    stage.arrive("one", 30)
    second = stage.arrive("one", 30)

    assert second.replaced is None
    assert len(stage.gate.queue) == 2


def test_expired_tickets_are_not_counted_as_redeemed():
    """A session that came back too late was a newcomer."""
    stage = Stage()
    busy = stage.enter("busy", 90)
    early = stage.arrive("early", 30)
    stage.gate.give_up(early, stage.now, keeps_ticket=True)
    stage.finish(busy, stop=StopReason.END_TURN)
    stage.wait(500)
    stage.enter("early", 30)

    assert stage.gate.counters.get("tickets_redeemed", 0) == 0


def test_one_turn_of_a_session_does_not_spend_the_others_ticket():
    """Two turns of it were refused; the first that starts leaves the other its place."""
    stage = Stage()
    stage.enter("busy", 90)
    early = stage.arrive("one", 50)
    stage.wait(100)
    stage.gate.give_up(early, stage.now, keeps_ticket=True)
    title = stage.ask("one", 1, chain=(1,), output_limit_tokens=50)
    assert title is not None
    back = stage.arrive("one", 50)

    assert back.stamp == early.stamp
