from typing import Any

import pytest

from proxy.dialects.model_names import ModelNames

ALIASES = {
    "claude-haiku-*": "small",
    "claude-sonnet-4-5": "big",
    "claude-*": "big",
    "gpt-?": "gpt-oss",
    "x.y": "dotted",
}
SERVED = {"small", "big", "claude-served", "gpt-oss"}
NAMES = ModelNames(ALIASES, SERVED.__contains__)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("claude-haiku-4-5-20251001", "small"),
        ("claude-sonnet-4-5", "big"),
        ("claude-opus-9", "big"),
        ("gpt-5", "gpt-oss"),
        ("gpt-55", "gpt-55"),
        ("x.y", "dotted"),
        ("xzy", "xzy"),
        ("claude-served", "claude-served"),
        ("big", "big"),
        ("Claude-haiku-1", "Claude-haiku-1"),
        ("", ""),
    ],
)
def test_l44_exact_names_then_patterns_in_their_order(asked, served):
    """A pattern never hides a name that is served; capitals and dots mean themselves."""
    assert NAMES.served_name(asked) == served


def test_l44_an_exact_alias_goes_before_what_is_served():
    """Who names a served model on purpose wants it replaced."""
    assert ModelNames({"big": "small"}, SERVED.__contains__).served_name("big") == "small"


def test_l44_exact_aliases_are_listed_with_the_model_that_they_stand_for():
    """Claude Code's list shows only names that begin as Anthropic's do; patterns are no names."""
    cards: list[dict[str, Any]] = [{"id": "big", "max_model_len": 9, "root": "r"}, {"id": "other"}]

    assert NAMES.listed(cards) == [*cards, {"id": "claude-sonnet-4-5", "max_model_len": 9, "root": "big"}]


def test_an_alias_hides_the_card_of_its_own_name():
    """What a client would get under that name is what it is shown."""
    cards = [{"id": "big"}, {"id": "small"}]

    assert ModelNames({"big": "small"}, SERVED.__contains__).listed(cards) == [
        {"id": "small"}, {"id": "big", "root": "small"}
    ]  # fmt: skip
