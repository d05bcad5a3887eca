from proxy.state.ranks import RankTable


def test_a_backend_with_one_engine_is_its_own_room():
    """Nothing is said of ranks then, and the backend chooses."""
    ranks = RankTable()

    assert ranks.rooms_of("a") == ranks.all_rooms_of("a") == ("a",)
    assert ranks.place_of("a") == ("a", None)
    assert not ranks.has_several
    assert not ranks.see("a", 1)


def test_several_engines_are_rooms_by_rank():
    """The first one goes on under the backend's name."""
    ranks = RankTable()

    assert ranks.see("a", 3)
    assert not ranks.see("a", 3)
    assert ranks.rooms_of("a") == ("a", "a#1", "a#2")
    assert [ranks.place_of(room) for room in ("a", "a#2", "b")] == [("a", 0), ("a", 2), ("b", None)]
    assert ranks.current_rooms_of("a") == ("a", "a#1", "a#2", "a#any")
    assert ranks.has_several


def test_ranks_that_are_gone_stand_for_nothing():
    """Their rooms are still known, for the turns that ran there; nobody is sent to a rank that is not there."""
    ranks = RankTable()
    ranks.see("a", 3)

    assert ranks.see("a", 2)
    assert ranks.rooms_of("a") == ("a", "a#1")
    assert ranks.all_rooms_of("a") == ("a", "a#1", "a#2", "a#any")
    assert ranks.place_of("a#2") == ("a", None)
    assert [ranks.is_current(room) for room in ("a", "a#1", "a#2")] == [True, True, False]

    assert ranks.see("a", 1)
    assert not ranks.has_several
    assert ranks.place_of("a") == ("a", None)
    assert [ranks.is_current(room) for room in ("a", "a#1")] == [True, False]


def test_turns_that_no_rank_can_be_asked_for_have_a_pool():
    """As long as there are several; the backend chooses among them."""
    ranks = RankTable()
    assert ranks.pool_of("a") == "a"
    assert ranks.current_rooms_of("a") == ("a",)

    ranks.see("a", 2)
    pool = ranks.pool_of("a")
    assert pool not in ranks.rooms_of("a")
    assert ranks.place_of(pool) == ("a", None)
    assert ranks.is_current(pool)

    ranks.see("a", 1)
    assert ranks.pool_of("a") == "a"
    assert ranks.place_of(pool) == ("a", None)
    assert not ranks.is_current(pool)


def test_its_size_follows_what_is_there():
    """However often engines come and go."""
    ranks = RankTable()
    for _ in range(100):
        ranks.see("a", 8)
        ranks.see("a", 1)

    assert len(ranks.all_rooms_of("a")) == 9
    assert not ranks._places
