from proxy.state.event_order import Arrival, EventOrder


def started(number):
    """A stream of which this number was the last."""
    order = EventOrder()
    order.see(number)
    return order


def test_the_first_message_may_have_any_number():
    """Whoever subscribes comes in the middle."""
    order = EventOrder()

    assert order.see(41) is Arrival.NEXT
    assert order.see(42) is Arrival.NEXT
    assert order.expected == 43


def test_a_number_that_is_too_high_is_a_gap_and_is_not_taken():
    """What is missing has to be told before it."""
    order = started(41)

    assert order.see(45) is Arrival.GAP
    assert order.expected == 42


def test_what_is_sent_again_is_taken_in_its_order():
    """Nothing twice, and nothing past a hole."""
    order = started(41)
    order.see(44)

    assert order.see_replayed(42)
    assert not order.see_replayed(42)
    assert not order.see_replayed(44)
    assert order.see_replayed(43)
    assert order.see(44) is Arrival.NEXT


def test_what_will_not_come_is_left_out():
    """The stream goes on behind the gap."""
    order = started(41)
    order.skip_to(50)

    assert order.see(50) is Arrival.NEXT


def test_a_number_that_was_there_before_is_another_process():
    """An engine that starts counts from 0."""
    order = started(41)

    assert order.see(0) is Arrival.RESTART
    assert order.see(1) is Arrival.NEXT
