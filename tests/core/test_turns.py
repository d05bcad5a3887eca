from proxy.core.turns import SessionKey, Turn

TURN = Turn(
    SessionKey("", "one", ""), 4_000, head_bytes=1_000, head=5, scope=6, tools=7, client=8, chain=(9, 10), twin=11
)


def test_nothing_matches_a_turn_of_other_weights():
    """Neither its head nor any of its messages, and the break is told as another model's."""
    other = TURN.of_weights(2**63)

    assert not {other.head, *other.chain} & {TURN.head, *TURN.chain}
    assert other.scope != TURN.scope
    assert all(0 < digest < 2**64 for digest in (other.head, other.scope, *other.chain))


def test_all_else_of_a_turn_stays():
    """The same weights always come to the same; they tell nothing of who asks, of sizes, or of tools."""
    other = TURN.of_weights(3)

    assert other == TURN.of_weights(3)
    assert other.of_weights(3) == TURN
    assert (other.session, other.text_bytes, other.tools, other.twin) == (TURN.session, 4_000, 7, 11)


def test_a_turn_without_a_head_gets_none():
    """0 says that there is none, and not which one."""
    assert Turn(SessionKey("", "one", ""), 4_000).of_weights(3).head == 0
