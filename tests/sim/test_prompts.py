"""Keys of text and of synthetic sessions."""

from proxy.sim.prompts import SessionKeys, SharedPrefix, chained_keys


def test_text_keys_depend_on_all_before():
    """Equal blocks after different beginnings have different keys, equal prefixes have equal ones."""
    first, second = chained_keys(b"aaaabbbbcccc", 1), chained_keys(b"xxxxbbbbcccc", 1)
    assert len(set(first + second)) == 6
    assert chained_keys(b"aaaabbbb", 1) == first[:2]


def test_only_full_blocks_have_keys():
    """A block that is not full yet cannot be found."""
    assert len(chained_keys(b"a" * 4 * 19, 10)) == 1


def test_session_grows_in_place():
    """A later turn's keys begin with an earlier one's, and reach over its answer."""
    session = SessionKeys(10)
    first = list(session.prompt(25, 10).keys)
    second = session.prompt(48)
    assert list(second.keys[:3]) == first
    assert len(second.keys) == 4
    assert second.n_tokens == 48


def test_sessions_share_whole_blocks_of_a_prefix_only():
    """Two sessions meet in the blocks that lie wholly in their shared prefix, and nowhere else."""
    shared = SharedPrefix("tools", 25, 10)
    first, second = (SessionKeys(10, shared).prompt(50) for _ in range(2))
    assert list(first.keys[:2]) == list(second.keys[:2]) == shared.keys
    assert not set(first.keys[2:]) & set(second.keys[2:])


def test_named_sessions_repeat():
    """A session that is named gets the same keys in every run."""
    assert list(SessionKeys(10, name="s").prompt(30).keys) == list(SessionKeys(10, name="s").prompt(30).keys)
