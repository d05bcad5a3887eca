from proxy.engines.readings import MAX_RANKS, START_TIME, Layout, Readings, gather, ratio, usage

LAYOUT = Layout(
    wanted={"m": "fact", "start": START_TIME},
    rank_label="rank",
    split_by={"fact": "part"},
    known_parts={"fact": frozenset({"a"})},
)


def test_ranks_come_in_order_of_their_number():
    """Ten comes after nine."""
    page = gather("".join(f'm{{rank="{rank}"}} 1\n' for rank in (10, 9, 1)), LAYOUT)

    assert ["1", "9", "10"] == list(page.ranks)


def test_no_page_has_more_engines_than_there_can_be():
    """A label gone mad does not fill our memory."""
    page = gather("".join(f'm{{rank="{rank}"}} 1\n' for rank in range(MAX_RANKS * 2)), LAYOUT)

    assert MAX_RANKS == len(page.ranks)


def test_the_start_time_belongs_to_the_page():
    """A page without any other fact has no engine."""
    page = gather("start 17\n", LAYOUT)

    assert (17, {}) == (page.start_time_s, page.ranks)


def test_parts_are_added_up_or_unknown():
    """No sample is not a total of 0."""
    readings = Readings()
    assert readings.total("fact") is None

    readings.add("fact", "a", 2)
    readings.add("fact", "b", 3)

    assert 5 == readings.total("fact")
    assert {"a": 2, "b": 3} == readings.parts("fact")


def test_a_number_too_large_to_count_is_no_count():
    """Beyond 2^53 a double skips numbers."""
    readings = Readings()
    readings.add("fact", "", 1e300)

    assert readings.count("fact") is None
    assert readings.total("fact") is None


def test_shares_that_make_no_sense_are_unknown():
    """Nothing counted is no share of 0."""
    assert [0.5, None, None, None, None] == [
        ratio(1, 2), ratio(3, 2), ratio(0, 0), ratio(None, 2), ratio(1, None)
    ]  # fmt: skip
    assert [None, 0.0, 1.0, 1.0, None] == [usage(value) for value in (None, 0.0, 1.0, 1.005, 2.0)]
