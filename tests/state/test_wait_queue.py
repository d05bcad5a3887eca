from proxy.core.turns import Rank, SessionKey, Turn
from proxy.state.sessions import Session
from proxy.state.wait_queue import Waiting, WaitQueue

KEY = SessionKey("", "s")


def waiting(number, *, session=None, rank=Rank.SESSION, twin=0, body_bytes=10) -> Waiting:
    """A request that waits."""
    session = session or Session(KEY)
    turn = Turn(session.key, text_bytes=100, twin=twin)
    return Waiting(number, turn, session, rank, ("a",), 0.0, 0.0, 10.0, 100, "m", body_bytes=body_bytes)


def test_each_rank_is_kept_in_order_of_arrival():
    """Who came first is seen first."""
    queue = WaitQueue()
    for number, rank in ((1, Rank.SESSION), (2, Rank.RESIDENT), (3, Rank.SESSION)):
        queue.add(waiting(number, rank=rank))

    assert [entry.id for entry in queue.of(Rank.SESSION)] == [1, 3]
    assert {entry.id for entry in queue} == {1, 2, 3}
    assert (3, 2, 0) == (len(queue), queue.count(Rank.SESSION), queue.count(Rank.BATCH))
    assert "'session': 2" in repr(queue)


def test_it_is_bounded_by_entries_and_by_bytes():
    """Whichever comes first; what leaves makes room."""
    queue = WaitQueue(capacity=2, capacity_bytes=100)
    big = waiting(1, body_bytes=101)
    queue.add(big)

    assert queue.is_overfull
    queue.remove(big)
    for number in (2, 3):
        queue.add(waiting(number))
        assert not queue.is_overfull
    queue.add(waiting(4))
    assert queue.is_overfull


def test_removing_twice_counts_once():
    """A request that was placed and gives up leaves one place, and its session one waiting turn."""
    queue = WaitQueue()
    session = Session(KEY)
    one, other = waiting(1, session=session), waiting(2, session=session)
    queue.add(one)
    queue.add(other)

    assert queue.remove(one)
    assert not queue.remove(one)
    assert (1, 10, 1) == (session.waiting, queue.body_bytes, len(queue))


def test_a_twin_is_found_only_where_copies_can_be_told():
    """Zero is no digest; another session's equal body is no copy."""
    queue = WaitQueue()
    session, other = Session(KEY), Session(SessionKey("", "other"))
    entry = waiting(1, session=session, twin=7)
    queue.add(entry)
    queue.add(waiting(2, session=session))

    assert (queue.twin_of(Turn(session.key, text_bytes=1, twin=7)),) == (entry,)
    assert queue.twin_of(Turn(session.key, text_bytes=1, twin=8)) is None
    assert queue.twin_of(Turn(session.key, text_bytes=1)) is None
    assert queue.twin_of(Turn(other.key, text_bytes=1, twin=7)) is None

    queue.remove(entry)

    assert queue.twin_of(Turn(session.key, text_bytes=1, twin=7)) is None


def test_an_older_copy_that_leaves_takes_no_newer_ones_place():
    """The newest copy is the one that is found."""
    queue = WaitQueue()
    session = Session(KEY)
    old, new = waiting(1, session=session, twin=7), waiting(2, session=session, twin=7)
    queue.add(old)
    queue.add(new)
    queue.remove(old)

    assert queue.twin_of(Turn(session.key, text_bytes=1, twin=7)) is new
