from proxy.core.turns import SessionKey
from proxy.state.idle_sessions import IdleSessions
from proxy.state.sessions import Residency, Session


def resting(*names):
    """Idle sessions of ten blocks each, the first one idle longest."""
    idle = IdleSessions()
    sessions = [Session(SessionKey("", name), Residency.IN) for name in names]
    for session in sessions:
        idle.add(session, (10.0, 0))
    return idle, sessions


def names(idle):
    """Who is idle, in order."""
    return "".join(session.key.session for session, _ in idle)


def test_whose_lease_is_over_stays_in_front():
    """The order is that of the engine's own list, and the sums are those of its two parts."""
    idle, (a, b, c) = resting("a", "b", "c")
    idle.let_go()

    assert idle.is_over(a)
    assert idle.first_kept() is b
    assert list(idle.kept(skip=1)) == [c]
    assert (names(idle), len(idle), idle.blocks, idle.over_blocks) == ("abc", 3, 30, 10)
    assert (idle.residents, idle.over_residents) == (3, 1)


def test_who_leaves_leaves_nothing_behind():
    """From either part, once."""
    idle, (a, b) = resting("a", "b")
    idle.let_go()

    assert idle.remove(b) == (10.0, 0)
    assert idle.remove(b) is None
    assert (idle.blocks, idle.over_blocks, idle.residents) == (10, 10, 1)
    idle.remove(a)
    assert (0, 0, 0, 0, 0) == (
        len(idle), idle.blocks, idle.over_blocks, idle.residents, idle.over_residents
    )  # fmt: skip


def test_a_place_that_is_given_up_is_no_residents_any_more():
    """The blocks still lie there; wherever in the list."""
    idle, (a, b) = resting("a", "b")
    idle.let_go()
    idle.give_up_place(a)
    idle.give_up_place(a)
    assert (idle.residents, idle.over_residents) == (1, 0)
    idle.give_up_place(b)

    assert (idle.residents, idle.blocks) == (0, 20)
    assert a.residency is b.residency is Residency.OUT


def test_what_each_key_keeps_is_known_without_a_walk():
    """Places that were given up are nobody's, and a key that keeps none is forgotten."""
    idle = IdleSessions()
    a, b, c = (Session(SessionKey(key, "s"), Residency.IN) for key in "xyz")
    for session in (a, b, c):
        idle.add(session, (10.0, 0))
    idle.add(other := Session(SessionKey("x", "t"), Residency.IN), (5.0, 0))
    idle.let_go()
    idle.give_up_place(b)
    idle.remove(b)
    idle.remove(c)
    assert idle.kept_by == {"x": (2, 15.0)}

    idle.remove(a)
    idle.remove(other)

    assert idle.kept_by == {}


def test_who_came_back_is_kept_while_its_turn_waits():
    """Though its lease was over; not against itself, and no longer than that."""
    idle, (a, b) = resting("a", "b")
    idle.let_go()
    a.waiting_as_resident = 1
    idle.come_back(a)
    idle.come_back(b)

    assert idle.has_returned(b)
    assert not idle.has_returned(a)
    a.waiting_as_resident = 0
    assert not idle.has_returned(b)
    assert "1 over" in repr(idle)


def test_each_change_shows():
    """What was worked out from the list before is known to be old."""
    idle, (a,) = resting("a")
    seen = [idle.changes]
    idle.give_up_place(a)
    seen.append(idle.changes)
    idle.remove(a)
    seen.append(idle.changes)

    assert seen == sorted(set(seen))
