import itertools

import pytest

from proxy.core.turns import UNNAMED, PrefixBreak, SessionKey, Turn
from proxy.gate import Gate, GateSettings
from proxy.gate.lineage import why_broken
from proxy.state.sessions import Session
from tests.gate.stage import Stage

BYTES = 16_000
"""Of one message."""
TOKENS = BYTES // 4
UNKNOWN = f"{UNNAMED}of its opening"


class Clients:
    """Prompts as lists of words, one a message, before a gate with two engines."""

    def __init__(self, **settings):
        self.stage = Stage("a", "b", blocks=1_000, **settings)
        self.gate = self.stage.gate

    def turn(self, words, *, session=None, agent="", credential="", head="S", **more):
        """A request with these messages; its client names a session, or none."""
        chain = tuple(itertools.accumulate(words.split(), lambda seed, word: hash((seed, word)), initial=0))[1:]
        chain = tuple(hash((head, credential, digest)) for digest in chain)
        opening = hash((head, chain[0])) & 0xFFFF
        return Turn(
            SessionKey(credential, session or f"{UNNAMED}{opening}", agent),
            text_bytes=(len(chain) + 1) * BYTES,
            head_bytes=BYTES,
            head=hash(head),
            chain=chain,
            spans=tuple((number + 2) * BYTES for number in range(len(chain))),
            **more,
        )

    def arrive(self, words, *, candidates=("a", "b"), **more):
        """A request comes, and waits."""
        return self.gate.arrive(self.turn(words, **more), candidates, self.stage.now, model="m")

    def begin(self, words, **more):
        """A request comes, starts, and is answered from now on."""
        self.stage.wait(1)
        waiting = self.arrive(words, **more)
        self.stage.pump()
        return self.stage.placed[waiting.id]

    def served(self, words, *, cached=None, **more):
        """A whole turn, what it was like before it started."""
        placement = self.begin(words, **more)
        self.gate.first_token(placement, self.stage.now)
        self.stage.finish(placement, cached=cached)
        return placement.waiting

    def sessions(self):
        """How many the gate knows."""
        return self.gate.sessions.count()


def test_a_prompt_that_goes_on_is_its_sessions_next_turn():
    """Its client names nothing; only the last message is new."""
    clients = Clients()
    first = clients.served("hi")
    second = clients.served("hi hello more")
    third = clients.served("hi hello more ok again")

    assert first.session is second.session is third.session
    assert clients.sessions() == 1
    assert (third.relative, third.prefix_break) == (None, None)
    assert third.session.turns == 3


def test_chats_with_one_opening_and_other_questions_are_many():
    """Each goes on by itself, whichever came before it."""
    clients = Clients()
    chats = [clients.served(f"welcome question-{number}").session for number in range(5)]
    for number in reversed(range(5)):
        assert clients.served(f"welcome question-{number} answer-{number} next-{number}").session is chats[number]

    assert len(set(map(id, chats))) == clients.sessions() == 5
    assert len({chat.key for chat in chats}) == 5


def test_a_branch_is_a_session_that_shares_a_beginning():
    """What it shares lies where the other is at home."""
    clients = Clients()
    parent = clients.served("a b c d e", candidates=("b",)).session
    fork = clients.arrive("a b c x")

    assert fork.session is not parent
    assert (fork.relative, fork.relative_home) == (parent, "b")
    assert fork.shared_tokens == 4 * TOKENS  # the head and three messages
    assert clients.gate.counters["forks"] == 1


def test_a_branch_of_the_whole_prompt_shares_what_the_engine_counted():
    """A parent of whom all is still there."""
    clients = Clients()
    parent = clients.served("a b c", session="S").session
    fork = clients.arrive("a b c d", session="S", agent="x")

    assert fork.session is not parent
    assert fork.relative is parent
    assert fork.shared_tokens == parent.prompt_tokens == 4 * TOKENS


def test_a_branch_is_expected_warm_at_its_relatives_home_alone():
    """And cold elsewhere, but for the head if that is known there."""
    clients = Clients()
    clients.served("a b c", candidates=("b",))
    here = clients.begin("a b x", candidates=("b",))
    there = clients.begin("a b y", candidates=("a",))

    assert (here.expected_tokens, here.uncached_tokens) == (3 * TOKENS, TOKENS)
    assert (there.expected_tokens, there.uncached_tokens) == (0, 4 * TOKENS)


def test_nothing_is_expected_of_what_has_gone():
    """The engine of the relative started anew."""
    clients = Clients()
    clients.served("a b c", candidates=("b",))
    clients.gate.see_restart("b", clients.stage.now)

    assert clients.begin("a b x", candidates=("b",)).expected_tokens == 0


def test_nothing_is_shared_with_what_is_not_computed_yet():
    """Its first prompt is on the way, or waits."""
    clients = Clients()
    clients.begin("a b c")
    fork = clients.arrive("a b x")

    assert fork.shared_tokens == 0
    assert fork.relative_home is None


def test_two_equal_first_prompts_at_once_are_two_sessions():
    """And each of them goes on as one of the two."""
    clients = Clients()
    one, two = clients.begin("hi"), clients.begin("hi")
    assert one.waiting.session is not two.waiting.session
    for placement in (one, two):
        clients.stage.finish(placement)

    third, fourth = clients.served("hi hello more"), clients.served("hi howdy else")

    assert {third.session, fourth.session} == {one.waiting.session, two.waiting.session}
    assert clients.sessions() == 2


def test_the_same_prompt_again_is_the_same_session():
    """Sent again after its answer, or after a refusal."""
    clients = Clients()
    first = clients.served("a b")
    again = clients.arrive("a b")
    clients.gate.give_up(again, clients.stage.now, keeps_ticket=True)

    assert clients.served("a b").session is again.session is first.session
    assert again.prefix_break is None


def test_a_turn_may_come_before_the_last_ones_end_was_seen():
    """Its client has read the whole answer; the connection's end comes later."""
    clients = Clients()
    first = clients.begin("a")

    assert clients.begin("a b c").waiting.session is first.waiting.session


def test_other_credentials_never_match():
    """Nor do they learn that somebody else has the same prompt (L10)."""
    clients = Clients()
    mine = clients.served("a b", credential="p")
    theirs = clients.arrive("a b c d", credential="q")

    assert theirs.session is not mine.session
    assert (theirs.relative, theirs.shared_tokens) == (None, 0)


def test_other_heads_never_match():
    """Another system prompt, model or salt is another prompt from its first byte."""
    clients = Clients()
    clients.served("a b c")

    assert clients.arrive("a b c d", head="other").relative is None


def test_a_named_session_is_what_its_client_says():
    """However alike it is; the likeness tells where it is warm."""
    clients = Clients()
    parent = clients.served("a b c d", session="S").session
    copy = clients.arrive("a b c d", session="T")
    unnamed = clients.arrive("a b c d e")

    assert copy.session.key.session == "T"
    assert copy.relative is unnamed.relative is parent
    assert unnamed.session is not parent


def test_sub_agents_of_one_session_are_each_their_own():
    """L06: their heads differ from their parent's; among themselves they share theirs."""
    clients = Clients()
    main = clients.served("a b", session="S")
    one = clients.served("task-1", session="S", agent="x", head="agents")
    two = clients.served("task-2", session="S", agent="y", head="agents")

    assert len({id(waiting.session) for waiting in (main, one, two)}) == 3
    assert (one.relative, two.relative) == (None, None)
    assert clients.served("a b c d", session="S").session is main.session


def test_what_the_index_has_forgotten_is_found_by_its_opening():
    """Its next turn goes on all the same; another chat with that opening is another."""
    clients = Clients()
    first = clients.served("a b").session
    for number in range(50_000):
        clients.gate.prefixes.add((number,), 0, first.key)

    assert clients.served("a z").session is not first
    assert clients.served("a b c d").session is first


@pytest.mark.parametrize(
    ("words", "more", "reason", "kept"),
    [
        ("a b c d e f", {}, None, 5),
        ("a b c d", {}, None, 5),
        ("a b", {}, None, 3),
        ("a b c x d", {}, PrefixBreak.EDITED, 4),
        ("a x c d", {}, PrefixBreak.COMPACTION, 2),
        ("summary", {}, PrefixBreak.COMPACTION, 0),
        ("a b c d e", {"head": "T", "tools": 2}, PrefixBreak.TOOLS, 0),
        ("a b c d e", {"head": "T"}, PrefixBreak.SYSTEM, 0),
        ("a b c d e", {"head": "T", "tools": 2, "client": 2}, PrefixBreak.CLIENT_UPGRADE, 0),
        ("a b c d e", {"head": "T", "tools": 2, "scope": 2}, PrefixBreak.MODEL, 0),
        ("a b c d e", {"client": 2}, None, 5),
    ],
)  # fmt: skip
def test_why_a_prefix_broke(words, more, reason, kept):
    """And how much of it is still of use: of a prompt that only lost its end, all."""
    clients = Clients()
    clients.served("a b c d", session="S")
    placement = clients.begin(words, session="S", **more)

    assert placement.waiting.prefix_break is reason
    assert placement.expected_tokens == kept * TOKENS
    assert clients.gate.counters[f"prefix_breaks_{reason}"] == (reason is not None)


def test_a_broken_prefix_keeps_its_session_and_its_place():
    """L07: a compaction goes home; what it holds there is its own new size, and the old one is forgotten."""
    clients = Clients()
    session = clients.served(" ".join("abcdefghij"), session="S", candidates=("b",)).session
    before = clients.stage.ledger("b").used_blocks

    placement = clients.begin("summary", session="S")
    clients.gate.first_token(placement, clients.stage.now)
    clients.stage.finish(placement)

    assert (placement.waiting.session, placement.backend, placement.admission) == (session, "b", "resident")
    assert session.context_tokens == 2 * TOKENS + 100
    assert clients.stage.ledger("b").used_blocks < before / 3


def test_a_loss_that_nobody_feels_is_no_break():
    """A title was asked for before the agent's first turn, under the same session."""
    stage = Stage("a")
    stage.rest("S", 0.5, head=5)

    assert stage.arrive("S", 30, head=6, extends=False).prefix_break is None


def test_side_calls_break_nothing():
    """They come between two turns, with a head of their own."""
    clients = Clients()
    clients.served(" ".join("abcdefghij"), session="S")

    assert clients.served("title", session="S", head="T").is_side
    assert clients.served("title", session="S", head="T").prefix_break is None
    assert clients.served(" ".join("abcdefghijkl"), session="S").prefix_break is None


def test_a_reason_needs_no_gate():
    """It is told from the turn and what its session was."""
    session = Session(SessionKey("", "s"), head=1, scope=1, tools=1, client=1, chain_length=4)
    turn = Turn(session.key, 1, head=1, scope=1, tools=1, client=1)

    assert why_broken(turn, session, 2) is PrefixBreak.EDITED
    assert why_broken(turn, session, 1) is PrefixBreak.COMPACTION


def test_a_prompt_without_messages_is_keyed_by_its_opening():
    """There is nothing else to tell it by."""
    gate = Gate(("a",), GateSettings())
    turn = Turn(SessionKey("", UNKNOWN), 100)
    one, two = gate.arrive(turn, ("a",), 0.0), gate.arrive(turn, ("a",), 1.0)

    assert one.session is two.session
    assert gate.sessions.count() == 1


def test_a_branch_goes_where_the_one_is_at_home_that_it_leaves():
    """Though the other engine is empty: what they share need not be computed again."""
    for home, other in (("a", "b"), ("b", "a")):
        clients = Clients()
        clients.served("a b c d e f", candidates=(home,))
        assert clients.begin("a b c d e x").backend == home
        # Who shares nothing goes where there is most room.
        assert clients.begin("y z", head="other").backend == other


def test_a_branch_that_shares_a_beginning_only_is_called_so():
    """Its own prefix is not there, though much of its prompt is."""
    clients = Clients()
    parent = clients.begin("a b c", candidates=("b",))
    clients.gate.first_token(parent, clients.stage.now)
    clients.stage.finish(parent)

    assert clients.begin("a b x", candidates=("b",)).prefix == "shared"
    assert clients.begin("a b c d", candidates=("b",)).prefix == "warm"
