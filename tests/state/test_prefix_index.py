import itertools
import random
import tracemalloc

from proxy.core.turns import SessionKey
from proxy.state.prefix_index import KEPT_OF_PROMPT, PrefixIndex

ONE, TWO = SessionKey("", "one"), SessionKey("", "two")


def test_the_longest_beginning_is_found():
    """From the deepest message down; what is not known has no owner."""
    index = PrefixIndex()
    index.add((1, 2, 3), 0, ONE)
    index.add((1, 2, 3, 4, 5), 3, TWO)

    assert index.match((1, 2, 3, 4, 5, 6)) == (TWO, 5)
    assert index.match((1, 2, 3, 9)) == (ONE, 3)
    assert index.match((7, 8)) == (None, 0)
    assert index.match(()) == (None, 0)


def test_what_was_known_stays_whose_it_was():
    """A branch adds its own messages only."""
    index = PrefixIndex()
    index.add((1, 2), 0, ONE)
    index.add((1, 2, 3), 2, TWO)

    assert index.match((1, 2)) == (ONE, 2)
    assert len(index) == 3


def test_a_million_prompts_do_not_grow_it():
    """L09: the ones that came first go first."""
    index = PrefixIndex(capacity=100)

    def come(numbers):
        for number in numbers:
            index.add((number,), 0, ONE)
            index.add_twin(number, TWO)
            index.keep(number - number % 3)

    come(range(1_000))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    come(range(1_000, 11_000))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(index) == 100
    assert after - before < 100_000
    assert index.match((10_999,)) == (ONE, 1)
    assert index.match((10_700,)) == (None, 0)
    assert repr(index) == "<PrefixIndex 100/100>"


def test_where_something_branches_off_stays_longer():
    """Once more as long as it would have stayed."""
    index = PrefixIndex(capacity=10)
    index.add((1,), 0, ONE)
    index.add((2,), 0, ONE)
    index.keep(1)
    for number in range(10, 20):
        index.add((number,), 0, TWO)

    assert index.match((1,)) == (ONE, 1)
    assert index.match((2,)) == (None, 0)
    for number in range(20, 30):
        index.add((number,), 0, TWO)
    assert index.match((1,)) == (None, 0)


def test_of_a_prompt_that_comes_at_once_the_last_messages_are_kept():
    """One huge prompt does not push out hundreds of sessions."""
    index = PrefixIndex()
    chain = tuple(range(1, 5_001))
    index.add(chain, 0, ONE)

    assert len(index) == KEPT_OF_PROMPT
    assert index.match(chain[:-1]) == (ONE, 4_999)
    assert index.match(chain[:4_000]) == (None, 0)


def test_twins_are_found_in_the_order_in_which_they_came():
    """And are bounded too, whoever asks the same ten thousand times at once."""
    index = PrefixIndex()
    index.add((1,), 0, ONE)
    keys = [SessionKey("", str(number)) for number in range(100)]
    for key in keys:
        index.add_twin(1, key)

    assert list(index.twins(1)) == keys[-64:]
    assert list(index.twins(2)) == []


def test_it_agrees_with_a_plain_search():
    """Random trees of prompts, looked up in every one of their points."""
    rng = random.Random(7)
    fresh = itertools.count(1)
    index = PrefixIndex()
    prompts: list[tuple[int, ...]] = [()]
    for number in range(300):
        chain = rng.choice(prompts)
        chain = (*chain[: rng.randint(0, len(chain))], *itertools.islice(fresh, rng.randint(1, 3)))
        owner, depth = index.match(chain)
        common = max(
            (sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(chain, other, strict=False))))
            for other in prompts
        )
        assert depth == common
        assert (owner is None) == (depth == 0)
        key = SessionKey("", str(number))
        index.add(chain, depth, key)
        prompts.append(chain)
