from proxy.state.stored_responses import StoredResponses


def test_a_follow_up_finds_its_backend_until_the_entry_expires():
    """L62: remembered for a while, unknown afterwards."""
    stored = StoredResponses(ttl_s=60.0)
    stored.remember("resp_1", "a", 0.0)

    assert stored.backend_of("resp_1", 60.0) == "a"
    assert stored.backend_of("resp_1", 60.1) is None
    assert stored.backend_of("resp_2", 0.0) is None


def test_the_oldest_goes_when_it_is_full():
    """L09: a million ids do not grow memory."""
    stored = StoredResponses(capacity=100)
    for number in range(10_000):
        stored.remember(f"resp_{number}", "a", 0.0)

    assert len(stored) == 100
    assert stored.backend_of("resp_9999", 0.0) == "a"
    assert stored.backend_of("resp_0", 0.0) is None
