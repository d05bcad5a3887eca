"""Routers without admission choose as their rules say."""

from collections import Counter

import pytest

from proxy.core.turns import StopReason
from proxy.sim.routers import ApproximateTree, BoundedHashing, LeastRequests
from proxy.sim.traces import RecordedTurn
from proxy.sim.workloads import ContentKeys, OpenTurn, SessionPlan, Thread

BLOCK = 64


def turn_of(number, *, session=None, prompt_tokens=6_400, head_tokens=0):
    """One turn of a session."""
    plan = SessionPlan("head", head_tokens, [RecordedTurn(prompt_tokens, 64, 1.0, StopReason.TOOL_USE)])
    thread = Thread(session or f"session-{number}", 0, plan, ContentKeys(BLOCK, "head", head_tokens), 4.0)
    return OpenTurn(number, thread, 0.0)


def send(policy, turn):
    """A turn comes and starts; where."""
    policy.arrive(turn, 0.0)
    (started,) = policy.start(0.0)
    assert started is turn
    return turn.backend


def test_least_requests_takes_turns():
    """As long as nothing ends; and what ends makes room."""
    policy = LeastRequests("least-requests", 3)
    turns = [turn_of(number) for number in range(6)]
    assert [send(policy, turn) for turn in turns] == [0, 1, 2, 0, 1, 2]

    policy.end(turns[4], 1.0, is_complete=True)
    assert send(policy, turn_of(7)) == 1


def test_hashing_sends_a_session_to_the_same_backend():
    """And different ones to different ones."""
    policy = BoundedHashing("bounded-hash", 4)
    homes: Counter[int] = Counter()
    for number in range(200):
        first, second = turn_of(2 * number, session=f"s{number}"), turn_of(2 * number + 1, session=f"s{number}")
        homes[send(policy, first)] += 1
        policy.end(first, 1.0, is_complete=True)
        assert send(policy, second) == first.backend
        policy.end(second, 1.0, is_complete=True)
    assert min(homes.values()) > 25


def test_hashing_bounds_the_load():
    """No backend that has more than 1.25 times the mean gets another turn."""
    policy = BoundedHashing("bounded-hash", 4)
    for number in range(100):
        send(policy, turn_of(number, session="always the same"))
        assert max(policy.inflight) <= 1 + 1.25 * (number + 1) / 4


def test_a_tree_sends_a_prompt_where_most_of_it_was_sent():
    """The session's second turn to the backend of its first."""
    policy = ApproximateTree("prefix-tree", 3, BLOCK)
    turns = [turn_of(number) for number in range(3)]
    assert [send(policy, turn) for turn in turns] == [0, 1, 2]
    for turn in turns:
        policy.end(turn, 1.0, is_complete=True)

    for turn in turns:
        again = OpenTurn(10 + turn.id, turn.thread, 2.0)
        assert send(policy, again) == turn.backend


@pytest.mark.parametrize(("head_tokens", "homes"), [(3_328, [0, 0, 0]), (3_072, [0, 1, 2])])
def test_a_head_attracts_when_it_is_more_than_half_of_the_prompt(head_tokens, homes):
    """52 and 48 of 100 blocks."""
    policy = ApproximateTree("prefix-tree", 3, BLOCK)

    assert [send(policy, turn_of(number, head_tokens=head_tokens)) for number in range(3)] == homes


def test_a_tree_leaves_a_backend_that_is_far_busier():
    """More than 32 turns and a tenth more than the least busy one."""
    policy = ApproximateTree("prefix-tree", 2, BLOCK)
    sent = [send(policy, turn_of(number, head_tokens=6_336)) for number in range(40)]

    assert sent[:33] == [0] * 33
    assert sent[33] == 1
