"""The block pool's promises, one by one and under random use."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.sim.blocks import BlockPool


def filled(pool, keys):
    """Blocks holding `keys`, as a sequence that has computed them would."""
    blocks = pool.allocate(len(keys))
    for block, key in zip(blocks, keys, strict=True):
        pool.publish(block, key)
    return blocks


def test_released_content_is_found_again():
    """A released sequence's blocks can be taken up by the next one with the same prefix."""
    pool = BlockPool(8)
    blocks = filled(pool, "abc")
    pool.release(blocks)
    assert pool.free_blocks == 8
    found = pool.match("abcd", 4)
    assert found == blocks
    pool.take_up(found)
    assert pool.used_blocks == 3


def test_match_stops_at_the_first_unknown_block():
    """A later block is of no use without all before it."""
    pool = BlockPool(8)
    filled(pool, "ac")
    assert len(pool.match("abc", 3)) == 1


def test_match_obeys_its_limit():
    """No more blocks are matched than asked for."""
    pool = BlockPool(8)
    filled(pool, "abc")
    assert len(pool.match("abc", 2)) == 2


def test_a_sequence_loses_its_tail_before_its_head():
    """On release blocks join the free list's end in reverse order."""
    pool = BlockPool(4)
    blocks = filled(pool, "abcd")
    pool.release(blocks)
    pool.allocate(2)
    assert pool.match("abcd", 4) == blocks[:2]


def test_least_recently_released_goes_first():
    """Of two idle sequences the one released earlier is evicted."""
    pool = BlockPool(4)
    first, second = filled(pool, "ab"), filled(pool, "xy")
    pool.release(first)
    pool.release(second)
    pool.allocate(2)
    assert pool.match("ab", 2) == []
    assert pool.match("xy", 2) == second


def test_unknown_content_is_reused_before_cached():
    """Blocks that nobody can find go to the front of the free list, a sequence's last one first of all."""
    pool = BlockPool(6)
    known, unknown = filled(pool, "abc"), pool.allocate(3)
    pool.release(known)
    pool.release(unknown)
    assert pool.eviction_order() == [*reversed(unknown), *reversed(known)]


def test_taking_up_renews_a_place():
    """A block that was taken up and released again is evicted after those released meanwhile."""
    pool = BlockPool(2)
    first, second = filled(pool, "a"), filled(pool, "b")
    pool.release(first)
    pool.release(second)
    pool.take_up(pool.match("a", 1))
    pool.release(first)
    pool.allocate(1)
    assert pool.match("a", 1) == first
    assert pool.match("b", 1) == []


def test_two_copies_of_one_content_stay_findable():
    """When one of two equal blocks is evicted, the other still serves."""
    pool = BlockPool(3)
    first, second = filled(pool, "a"), filled(pool, "a")
    pool.release(first)
    pool.allocate(1)
    pool.allocate(1)
    assert pool.match("a", 1) == second


def test_idle_blocks_are_told_from_used_ones():
    """Taking up an idle block costs room, sharing a used one does not."""
    pool = BlockPool(4)
    used, idle = filled(pool, "ab"), filled(pool, "cd")
    pool.release(idle)
    assert pool.idle_among(used + idle) == 2


def test_more_than_there_is():
    """Asking for more blocks than are free is the caller's mistake, and takes nothing."""
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="3 blocks asked, 2 free"):
        pool.allocate(3)
    assert pool.free_blocks == 2


def test_double_release():
    """A block released more often than taken is a mistake that is not hidden."""
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="more often"):
        pool.release(blocks)


def test_empty_pool():
    """A pool without blocks is refused."""
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)


def test_forget_all_keeps_what_is_in_use():
    """A reset of the cache drops contents, not sequences."""
    pool = BlockPool(4)
    filled(pool, "ab")
    pool.forget_all()
    assert pool.cached_keys == 0
    assert pool.used_blocks == 2


class PoolUse(RuleBasedStateMachine):
    """Sequences come, share prefixes and go in any order."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(12)
        self.held = []

    @rule(family=st.integers(0, 2), length=st.integers(1, 6), published=st.integers(0, 6))
    def begin(self, family, length, published):
        """A sequence takes up what is cached of it and allocates the rest, if it fits."""
        keys = [(family, index) for index in range(length)]
        found = self.pool.match(keys, length)
        if length - len(found) + self.pool.idle_among(found) > self.pool.free_blocks:
            return
        self.pool.take_up(found)
        blocks = found + self.pool.allocate(length - len(found))
        for block, key in list(zip(blocks, keys, strict=True))[:published]:
            self.pool.publish(block, key)
        self.held.append((keys[:published], blocks))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data):
        """Any sequence ends."""
        index = data.draw(st.integers(0, len(self.held) - 1))
        _, blocks = self.held.pop(index)
        self.pool.release(blocks)

    @invariant()
    def counts_add_up(self):
        """Every block is free or used, never both, and is referred to exactly as often as sequences hold it."""
        counted = dict.fromkeys(range(self.pool.n_blocks), 0)
        for _, blocks in self.held:
            assert len(set(blocks)) == len(blocks)
            for block in blocks:
                counted[block] += 1
        free = self.pool.eviction_order()
        assert len(free) == len(set(free)) == self.pool.free_blocks
        assert self.pool.free_blocks + self.pool.used_blocks == self.pool.n_blocks
        assert {block for block, count in counted.items() if count == 0} == set(free)
        assert all(self.pool.references(block) == count for block, count in counted.items())

    @invariant()
    def only_equal_content_is_shared(self):
        """A block held by two sequences holds the same content for both."""
        meaning: dict[Any, Any] = {}
        for keys, blocks in self.held:
            for key, block in zip(keys, blocks, strict=False):
                assert meaning.setdefault(block, key) == key

    @invariant()
    def what_runs_can_be_found(self):
        """The published content of a running sequence is never evicted."""
        for keys, _ in self.held:
            assert len(self.pool.match(keys, len(keys))) == len(keys)


TestPoolUse = PoolUse.TestCase
TestPoolUse.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
