import pytest

from proxy.core.turns import SessionKey
from proxy.dialects.session_identity import session_key
from proxy.state.sessions import Residency, Session, SessionTable


def key(name, *, credential="", agent=""):
    """A session's key."""
    return SessionKey(credential, name, agent)


def test_the_same_key_is_the_same_session():
    """Until then it is new."""
    table = SessionTable()
    first, gone = table.touch(key("a"), 0.0)
    again, _ = table.touch(key("a"), 1.0)

    assert first is again
    assert gone == []
    assert first.residency is Residency.NEW
    assert (table.get(key("a")), table.get(key("b"))) == (first, None)
    assert repr(table) == "<SessionTable 1>"


@pytest.mark.parametrize("other", [key("session-12"), key("session-1", agent="x"), key("session-1", credential="c")])
def test_keys_match_by_equality_only(other):
    """L06, L10: neither likeness, nor another agent, nor another credential makes one session of two."""
    table = SessionTable()
    mine, _ = table.touch(key("session-1"), 0.0)

    assert table.touch(other, 0.0)[0] is not mine


def test_a_million_names_do_not_grow_it():
    """L09: the longest unseen go, one for one."""
    table = SessionTable(capacity=100)
    gone = [session for number in range(5_000) for session in table.touch(key(str(number)), 0.0)[1]]

    assert table.count() == 100
    assert [session.key.session for session in gone] == [str(number) for number in range(4_900)]


def test_what_was_quiet_for_two_hours_goes():
    """A few at a time, so that no request pays for all."""
    table = SessionTable(ttl_s=10.0)
    for number in range(5):
        table.touch(key(str(number)), 0.0)

    assert [s.key.session for s in table.touch(key("x"), 20.0)[1]] == ["0", "1"]
    assert [s.key.session for s in table.touch(key("x"), 20.0)[1]] == ["2", "3"]
    assert [s.key.session for s in table.touch(key("x"), 20.0)[1]] == ["4"]


def test_who_is_busy_is_not_forgotten():
    """A session with turns in flight or waiting outlives both bounds."""
    table = SessionTable(capacity=2, ttl_s=10.0)
    flying, _ = table.touch(key("flying"), 0.0)
    flying.inflight = 1
    queued, _ = table.touch(key("queued"), 0.0)
    queued.waiting = 1
    for number in range(10):
        table.touch(key(str(number)), 100.0)

    assert table.get(flying.key) is flying
    assert table.get(queued.key) is queued
    assert table.count() <= 5


def test_only_sessions_without_a_name_of_their_own_are_unnamed():
    """Whether a client names its sessions is told from the key."""
    assert Session(session_key("", ("mine", ""), 1)).is_named
    assert not Session(session_key("", None, 1)).is_named


def test_a_sub_agent_has_a_resident_parent_while_the_main_thread_is_in():
    """Of the same session and credential; a main thread has none."""
    table = SessionTable()
    parent, _ = table.touch(SessionKey("c", "s"), 0.0)
    assert not table.has_resident_parent(SessionKey("c", "s", "x"))

    parent.residency = Residency.IN

    assert table.has_resident_parent(SessionKey("c", "s", "x"))
    assert not table.has_resident_parent(SessionKey("c", "s"))
    assert not table.has_resident_parent(SessionKey("d", "s", "x"))
