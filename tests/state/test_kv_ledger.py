import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.core.capacity import KvCapacity
from proxy.core.turns import SessionKey
from proxy.state.kv_ledger import Hold, KvLedger
from proxy.state.sessions import Residency, Session

NAMES = st.sampled_from("abcdef")
HEADS = st.sampled_from([0, 1, 2])
HEAD_TOKENS = 320


def ledger_of(blocks=100, *, alpha=1.0, beta=0.0):
    """A ledger over blocks of sixteen tokens."""
    ledger = KvLedger()
    ledger.capacity = KvCapacity(total_blocks=blocks, block_tokens=16, alpha=alpha, beta_blocks=beta)
    return ledger


def session_of(name):
    """A resident session."""
    return Session(SessionKey("", name), Residency.IN)


def hold_of(session, blocks, *, head=0, uncached=0):
    """What a turn of a session holds."""
    return Hold(session, head, int(blocks * 16), uncached, blocks, 0.0)


def test_a_turn_is_pinned_until_it_is_given_back_and_only_once():
    """However often its end is told."""
    ledger = ledger_of()
    ledger.take(1, hold_of(session_of("a"), 30, uncached=480), 0)

    assert (30, 480) == (ledger.pinned_blocks, ledger.uncached_tokens)
    assert ledger.give_back(1) is not None
    assert ledger.give_back(1) is None
    assert (0, 0) == (ledger.used_blocks, ledger.uncached_tokens)


def test_a_computed_prompt_is_no_longer_uncached():
    """Its first token has passed; a second one changes nothing."""
    ledger = ledger_of()
    ledger.take(1, hold_of(session_of("a"), 30, uncached=480), 0)
    ledger.computed(1)
    ledger.computed(1)
    ledger.computed(2)

    assert ledger.uncached_tokens == 0
    ledger.give_back(1)
    assert ledger.uncached_tokens == 0


def test_growing_books_the_difference():
    """What is not known any more grows nothing."""
    ledger = ledger_of()
    ledger.take(1, hold_of(session_of("a"), 30), 0)
    ledger.grow(1, 640, 40.0)
    ledger.grow(2, 640, 40.0)

    assert ledger.pinned_blocks == 40


def test_idle_sessions_are_given_away_in_the_order_of_the_engines_own_list():
    """Who rested longest goes first, and a new rest is a new place."""
    ledger = ledger_of()
    a, b = session_of("a"), session_of("b")
    for session in (a, b, a):
        ledger.rest(session, 10.0, 0, 0)

    assert [(b, 10.0), (a, 10.0)] == list(ledger.longest_idle_first())
    assert ledger.idle_blocks == 20
    assert (ledger.evict(b), ledger.evict(b)) == (10.0, 0.0)
    assert (ledger.idle_of(a), ledger.idle_of(b)) == (10.0, 0.0)


def test_a_shared_head_is_counted_once_and_goes_with_its_last_user():
    """Two sessions of one client version."""
    ledger = ledger_of()
    a, b = session_of("a"), session_of("b")

    assert ledger.shared_blocks(7, HEAD_TOKENS) == 20
    assert not ledger.knows_head(7)
    ledger.take(1, hold_of(a, 5, head=7), HEAD_TOKENS)
    assert ledger.knows_head(7)
    ledger.rest(b, 5.0, 7, HEAD_TOKENS)
    assert ledger.used_blocks == 30

    ledger.give_back(1)
    assert ledger.head_blocks == 20
    ledger.evict(b)
    assert ledger.used_blocks == 0
    assert not ledger.knows_head(7)


def test_a_private_part_is_what_is_not_shared():
    """At least one block; fixed pages only while it runs."""
    ledger = ledger_of(beta=3.0)

    assert ledger.private_blocks(1_600, 0, 0, is_running=True) == 103
    assert ledger.private_blocks(1_600, 0, 0, is_running=False) == 100
    assert ledger.private_blocks(1_600, 7, HEAD_TOKENS, is_running=False) == 80
    assert ledger.private_blocks(16, 7, HEAD_TOKENS, is_running=False) == 1


def test_a_head_is_booked_anew_when_its_size_is_known_better():
    """The difference is what changes, and nothing is left at the end."""
    ledger = ledger_of()
    ledger.take(1, hold_of(session_of("a"), 5, head=7), HEAD_TOKENS)
    ledger.rebook_head(7, 640)
    ledger.rebook_head(8, 640)

    assert ledger.head_blocks == 40
    ledger.give_back(1)
    assert ledger.head_blocks == 0


def test_foreign_load_is_smoothed_and_never_negative():
    """One sample of the gauge is off by four in a hundred; the first one is all that is known."""
    ledger = ledger_of()
    ledger.see_foreign(10.0)
    assert ledger.foreign_blocks == 10.0
    ledger.see_foreign(0.0)
    assert ledger.foreign_blocks == pytest.approx(7.0)
    for _ in range(40):
        ledger.see_foreign(-20.0)
    assert ledger.foreign_blocks == pytest.approx(0.0, abs=0.01)


def test_foreign_load_that_was_forgotten_is_seen_anew():
    """After a silence the first word counts in full again."""
    ledger = ledger_of()
    ledger.see_foreign(10.0)
    ledger.forget_foreign()
    assert ledger.foreign_blocks == 0.0

    ledger.see_foreign(40.0)

    assert ledger.foreign_blocks == 40.0


def test_residents_are_counted_and_forgotten():
    """Turns in flight and idle sessions that keep their place."""
    ledger = ledger_of()
    a, b, c = session_of("a"), session_of("b"), session_of("c")
    ledger.take(1, hold_of(a, 5), 0)
    ledger.rest(b, 5.0, 0, 0)
    ledger.rest(c, 5.0, 0, 0)
    ledger.idle.give_up_place(c)

    assert ledger.resident_sessions == 2
    assert ledger.forget_residents() == [b, c]
    assert ledger.used_blocks == 5
    assert repr(ledger) == "<KvLedger 5/100 blocks: 5 pinned by 1, 0 idle of 0, 0 heads>"


def test_a_head_is_warm_when_a_prompt_with_it_has_been_computed():
    """Until then somebody may be waiting for it; a prompt that broke off has warmed nothing."""
    ledger = ledger_of()
    assert ledger.warming_since(1) is None
    for number, sent_at in ((1, 5.0), (2, 6.0)):
        ledger.take(number, Hold(session_of("a"), 1, 640, 640, 20.0, sent_at), HEAD_TOKENS)
    assert ledger.warming_since(1) == 5.0

    ledger.give_back(1)
    assert ledger.warming_since(1) == 5.0
    ledger.computed(2)
    assert ledger.warming_since(1) is None


def test_a_head_that_rests_is_warm():
    """Whoever rests has been computed."""
    ledger = ledger_of()
    ledger.rest(session_of("a"), 20.0, 1, HEAD_TOKENS)

    assert ledger.warming_since(1) is None
    assert ledger.knows_head(1)


def test_every_change_of_what_is_held_is_counted():
    """So that what was worked out from it is known to be old."""
    ledger, session = ledger_of(), session_of("a")
    seen = [ledger.changes]
    for happen in (
        lambda: ledger.take(1, Hold(session, 1, 640, 640, 20.0, 5.0), HEAD_TOKENS),
        lambda: ledger.grow(1, 700, 22.0),
        lambda: ledger.computed(1),
        lambda: ledger.rebook_head(1, 2 * HEAD_TOKENS),
        lambda: ledger.give_back(1),
        lambda: ledger.rest(session, 20.0, 1, HEAD_TOKENS),
        lambda: ledger.evict(session),
    ):
        happen()
        seen.append(ledger.changes)

    assert seen == sorted(set(seen))


class Bookings(RuleBasedStateMachine):
    """Whatever is booked in whatever order, the sums are those of the entries, and nothing leaves nothing."""

    def __init__(self):
        super().__init__()
        self.ledger = ledger_of(alpha=1.1, beta=2.7)
        self.sessions = {name: session_of(name) for name in "abcdef"}
        self.number = 0

    @rule(name=NAMES, head=HEADS, tokens=st.integers(1, 3_000))
    def take(self, name, head, tokens):
        """A turn begins."""
        ledger = self.ledger
        self.number += 1
        blocks = ledger.private_blocks(tokens, head, HEAD_TOKENS, is_running=True)
        ledger.take(self.number, Hold(self.sessions[name], head, tokens, tokens, blocks, 0.0), HEAD_TOKENS)

    @precondition(lambda self: self.ledger.holds)
    @rule(data=st.data(), what=st.sampled_from(["computed", "grow", "end", "rebook"]), tokens=st.integers(1, 3_000))
    def go_on(self, data, what, tokens):
        """A turn in flight."""
        ledger = self.ledger
        number = data.draw(st.sampled_from(sorted(ledger.holds)))
        hold = ledger.holds[number]
        if what == "computed":
            ledger.computed(number)
        elif what == "grow":
            blocks = ledger.private_blocks(tokens, hold.head, HEAD_TOKENS, is_running=True)
            ledger.grow(number, tokens, blocks)
        elif what == "rebook":
            ledger.rebook_head(hold.head, tokens)
        else:
            ledger.give_back(number)

    @rule(name=NAMES, head=HEADS, tokens=st.integers(1, 3_000), stays=st.booleans())
    def rest(self, name, head, tokens, stays):
        """A session is idle."""
        blocks = self.ledger.private_blocks(tokens, head, HEAD_TOKENS, is_running=False)
        self.ledger.rest(self.sessions[name], blocks, head, HEAD_TOKENS)
        if not stays:
            self.ledger.evict(self.sessions[name])

    @precondition(lambda self: self.ledger.idle.first_kept())
    @rule()
    def let_go(self):
        """A lease is over."""
        self.ledger.let_go()

    @rule()
    def restart(self):
        """The cache is lost."""
        self.ledger.forget_residents()

    @invariant()
    def sums_are_those_of_the_entries(self):
        """Nothing is negative, nothing is counted that is not there."""
        ledger = self.ledger
        assert ledger.pinned_blocks == pytest.approx(sum(hold.blocks for hold in ledger.holds.values()), abs=1e-6)
        assert ledger.idle_blocks == pytest.approx(sum(blocks for _, blocks in ledger.longest_idle_first()), abs=1e-6)
        assert ledger.uncached_tokens == sum(hold.uncached_tokens for hold in ledger.holds.values())
        assert min(ledger.pinned_blocks, ledger.idle_blocks, ledger.head_blocks) >= 0
        idle = list(ledger.idle)
        over = [session for session, _ in idle if ledger.idle.is_over(session)]
        assert [session for session, _ in idle][: len(over)] == over
        free = sum(blocks for _, blocks in ledger.freed_by(over))
        assert ledger.over_blocks(session_of("nobody"), 2.0) == pytest.approx(free + 2.0 * len(over), abs=1e-6)
        for but in over:
            others = ledger.freed_by(session for session in over if session is not but)
            free = sum(blocks for _, blocks in others) + 2.0 * (len(over) - 1)
            assert ledger.over_blocks(but, 2.0) == pytest.approx(free, abs=1e-6)
        assert ledger.idle.residents == len(idle)
        used = {hold.head for hold in ledger.holds.values()}
        heads = sum(ledger.shared_blocks(head, 0) for head in used)
        assert ledger.pinned_head_blocks() == pytest.approx(heads, abs=1e-6)
        if not ledger.holds:
            assert (ledger.pinned_blocks, ledger.uncached_tokens) == (0, 0)
            if not any(True for _ in ledger.longest_idle_first()):
                assert ledger.used_blocks == 0

    def teardown(self):
        """At the end everything is given back, and nothing is left."""
        for number in list(self.ledger.holds):
            self.ledger.give_back(number)
        self.ledger.forget_residents()
        assert self.ledger.used_blocks == 0


TestBookings = Bookings.TestCase
TestBookings.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
