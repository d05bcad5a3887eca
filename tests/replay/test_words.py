"""Texts have the length that was asked for, and conversations grow so that prefixes repeat."""

import pytest

from proxy.bench.plans import TurnPlan, chance
from proxy.bench.words import CANDIDATES, Conversation, Words, one_token_words

ONE_TO_ONE = Words(tokens_per_word=1.0)


def conversation(session=1, run="run"):
    """An empty one."""
    return Conversation(ONE_TO_ONE, run=run, shared_tokens=20, session=session)


def shown(talk):
    """Roles and words."""
    return [(message.role, len(message.text.split())) for message in talk.messages]


@pytest.mark.parametrize(("tokens_per_word", "words"), [(1.0, 120), (1.5, 80), (4.0, 30)])
def test_a_text_has_as_many_words_as_make_its_tokens(tokens_per_word, words):
    """Whatever the tokenizer makes of a word."""
    assert len(Words(tokens_per_word=tokens_per_word).text(chance(1), 120).split()) == words


def test_without_a_tokenizer_four_bytes_are_a_token():
    """The rule of thumb for a server that counts nothing."""
    assert len(Words().text(chance(1), 10_000)) == pytest.approx(40_000, rel=0.02)


def test_words_that_the_tokenizer_keeps_whole_are_found():
    """Both markers of a leading space are known; pieces of words are not mistaken for words."""
    assert one_token_words(["the", "Ġand", "▁return", " val", "ue", "Ġxyz"]) == ("and", "val", "return")
    assert len(set(CANDIDATES)) == len(CANDIDATES)


def test_all_sessions_of_a_run_share_the_head_and_nothing_else():
    """Another run shares not even that."""
    one, two, other = conversation(1), conversation(2), conversation(1, run="other")
    for talk in (one, two, other):
        talk.ask(TurnPlan(30, 1, 0))

    assert one.head == two.head != other.head
    assert len({talk.messages[0].text for talk in (one, two, other)}) == 3


def test_a_conversation_takes_the_answer_as_it_came():
    """So that the next prompt begins with what the engine has cached."""
    talk = conversation()
    talk.ask(TurnPlan(30, 9, 0))
    talk.answer(" odd  text ", 9)
    before = [(message.role, message.text) for message in talk.messages]
    talk.ask(TurnPlan(7, 9, 0))

    assert before[1] == ("assistant", " odd  text ")
    assert [(message.role, message.text) for message in talk.messages[:2]] == before
    assert shown(talk)[2] == ("user", 7)


def test_users_never_speak_twice_in_a_row():
    """Some chat templates refuse it; an empty answer must not lead there."""
    talk = conversation()
    talk.ask(TurnPlan(30, 9, 0))
    talk.answer("", 0)
    talk.ask(TurnPlan(7, 9, 0))

    assert shown(talk) == [("user", 37)]


@pytest.mark.parametrize(
    ("kept_tokens", "left"),
    [
        (20, [("user", 5)]),  # the head alone
        (30, [("user", 15)]),  # and ten tokens of the task
        (55, [("user", 35)]),  # an answer is kept whole or not at all
        (61, [("user", 30), ("assistant", 10), ("user", 6)]),
        (500, [("user", 30), ("assistant", 10), ("user", 45)]),
    ],
)
def test_a_turn_drops_what_it_does_not_keep(kept_tokens, left):
    """From the end, as a compaction or an edit does."""
    talk = conversation()
    talk.ask(TurnPlan(30, 1, 0))
    talk.make_up_answer(10)
    talk.ask(TurnPlan(40, 1, 0))
    talk.ask(TurnPlan(5, 1, 0, kept_tokens=kept_tokens))

    assert shown(talk) == left
