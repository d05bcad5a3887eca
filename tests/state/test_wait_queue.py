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


def test_a_turn_is_replaced_by_its_copy_once():
    """Ten minutes after the last copy of it came it may be again; other turns are other turns."""
    queue = WaitQueue()
    one, two = Turn(KEY, text_bytes=1, twin=1), Turn(KEY, text_bytes=1, twin=2)

    assert [queue.takes_over(one, now) for now in (0.0, 1.0, 500.0, 1_000.0)] == [True, False, False, False]
    assert queue.takes_over(two, 1.0)
    assert queue.takes_over(one, 1_601.0)


def test_what_was_replaced_is_not_remembered_without_end():
    """No more turns than may wait."""
    queue = WaitQueue(capacity=3)
    for twin in range(1, 100):
        queue.takes_over(Turn(KEY, text_bytes=1, twin=twin), 0.0)

    assert len(queue._replaced_at) == 3


def aged(number, stamp, *, came_back_at=None, **more):
    """A request that counts as waiting since then, of a session of its own."""
    entry = waiting(number, session=Session(SessionKey("", str(number))), **more)
    entry.stamp, entry.arrived_at = stamp, stamp if came_back_at is None else came_back_at
    return entry


def filled(*entries, capacity=2, capacity_bytes=1_000):
    """A queue with these in it."""
    queue = WaitQueue(capacity=capacity, capacity_bytes=capacity_bytes)
    for entry in entries:
        queue.add(entry)
    return queue


def test_within_its_bounds_nobody_has_to_go():
    """However young."""
    entry = aged(1, 5.0)

    assert filled(entry).surplus(entry) == []


def test_the_youngest_has_to_go():
    """A newcomer itself; for one that comes back, the youngest of those that wait."""
    old, young = aged(1, 1.0), aged(2, 5.0)
    newcomer, returning = aged(3, 9.0), aged(4, 0.0, came_back_at=9.0)
    nearly_new = aged(5, 8.0, came_back_at=9.0)

    assert filled(old, young, newcomer).surplus(newcomer) == [newcomer]
    assert filled(old, young, returning).surplus(returning) == [young]
    assert filled(old, young, nearly_new).surplus(nearly_new) == [nearly_new]


def test_batches_go_first_and_a_residents_turn_last():
    """A resident has its place on an engine; one with several turns waiting has no more right than others."""
    batch, session = aged(1, 1.0, rank=Rank.BATCH), aged(2, 2.0)
    newcomer, resident = aged(3, 9.0), aged(4, 10.0, rank=Rank.RESIDENT)
    late_batch = aged(5, 11.0, rank=Rank.BATCH)

    assert filled(session, batch, newcomer).surplus(newcomer) == [batch]
    assert filled(session, batch, late_batch).surplus(late_batch) == [late_batch]
    assert filled(session, newcomer, late_batch).surplus(late_batch) == [late_batch]
    assert filled(session, newcomer, resident).surplus(resident) == [newcomer]
    resident.session.waiting += 1
    assert filled(session, newcomer, resident).surplus(resident) == [resident]


def test_for_a_large_body_several_go_or_none():
    """Nobody is sent away for one that does not fit even so."""
    entries = [aged(number, 5.0 + number, body_bytes=40) for number in range(3)]
    large, too_large = (aged(number, 0.0, came_back_at=9.0, body_bytes=size) for number, size in ((8, 90), (9, 1_001)))

    queue = filled(*entries, large, capacity=9, capacity_bytes=150)
    assert queue.surplus(large) == [entries[2], entries[1]]
    queue = filled(*entries, too_large, capacity=9, capacity_bytes=1_000)
    assert queue.surplus(too_large) == [too_large]


def test_those_that_wait_for_a_place_are_found_by_size_age_and_home():
    """In the order of arrival between equals, and no more once they have left."""
    queue = WaitQueue()
    entries = [aged(number, stamp) for number, stamp in ((1, 5.0), (2, 3.0), (3, 3.0))]
    for entry, tokens, home in zip(entries, (300, 100, 300), ("a", None, "b"), strict=True):
        entry.prompt_tokens, entry.session.home = tokens, home
        queue.add(entry)

    assert [one.waiting.id for one in queue.up_to(Rank.SESSION, 300)] == [2, 1, 3]
    assert [one.waiting.id for one in queue.up_to(Rank.SESSION, 299.9)] == [2]
    assert queue.longest_waiting(Rank.SESSION) is entries[1]
    assert [one.waiting.id for one in queue.at_home(Rank.SESSION, ("a", "c")).values()] == [1]
    assert queue.prompt_tokens == 700
    assert queue.longest_waiting(Rank.BATCH) is None

    for entry in entries[:2]:
        queue.remove(entry)

    assert [one.waiting.id for one in queue.up_to(Rank.SESSION, 300)] == [3]
    assert queue.longest_waiting(Rank.SESSION) is entries[2]
    assert (queue.at_home(Rank.SESSION, ("a",)), queue.prompt_tokens) == ({}, 300)


def test_a_session_that_moves_takes_its_waiting_turns_along():
    """Another turn of it was placed elsewhere meanwhile; others that lived there stay."""
    queue = WaitQueue()
    moving, staying = aged(1, 1.0), aged(2, 2.0)
    for entry in (moving, staying):
        entry.session.home = "a"
        queue.add(entry)
    moving.session.home = "b"
    queue.has_moved(moving.session, "a")

    assert [one.waiting for one in queue.at_home(Rank.SESSION, ("a",)).values()] == [staying]
    assert [one.waiting for one in queue.at_home(Rank.SESSION, ("b",)).values()] == [moving]
    queue.remove(moving)
    assert queue.at_home(Rank.SESSION, ("b",)) == {}
