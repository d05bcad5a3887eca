from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from proxy.core.backends import Backend
from proxy.core.outcomes import Outcome
from proxy.state.ledger import Ledger

A = Backend(name="a", host="h", port=1, authority="h:1")


def test_leaving_without_an_ending_closes_as_aborted():
    """A cancelled request gives back what it held."""
    ledger = Ledger()

    with ledger.reserve(A) as reservation:
        assert ledger.inflight("a") == 1

    assert (Outcome.ABORTED, 0) == (reservation.outcome, ledger.inflight("a"))


def test_closing_twice_gives_back_once():
    """The first outcome stands, and the count never goes below zero."""
    ledger = Ledger()
    other = ledger.reserve(A)

    with ledger.reserve(A) as reservation:
        reservation.close(Outcome.COMPLETED)
        reservation.close(Outcome.CLIENT_CLOSED)

    assert (Outcome.COMPLETED, 1, 1) == (reservation.outcome, ledger.inflight("a"), ledger.total_inflight)
    other.close(Outcome.COMPLETED)
    assert repr(ledger) == "<Ledger {}>"


class Interleavings(RuleBasedStateMachine):
    """Any order of taking and giving back, twice or not, leaves exactly the open reservations counted."""

    open_ones = Bundle("open_ones")

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.expected = {"a": 0, "b": 0}

    @rule(target=open_ones, name=st.sampled_from(["a", "b"]))
    def take(self, name):
        """Reserve."""
        self.expected[name] += 1
        return self.ledger.reserve(Backend(name=name, host="h", port=1, authority="h"))

    @rule(reservation=consumes(open_ones), twice=st.booleans())
    def give_back(self, reservation, twice):
        """Close, perhaps twice."""
        self.expected[reservation.backend.name] -= 1
        for _ in range(1 + twice):
            reservation.close(Outcome.COMPLETED)

    @invariant()
    def counts_are_those_of_the_open_ones(self):
        """Nothing is leaked and nothing is counted twice."""
        assert {name: self.ledger.inflight(name) for name in self.expected} == self.expected


TestInterleavings = Interleavings.TestCase
