import json
from typing import Any

import pytest

from proxy.dialects import model_list

CARDS: list[dict[str, Any]] = [
    {"id": "qwen", "object": "model", "created": 1_700_000_000, "owned_by": "vllm", "max_model_len": 131_072},
    {"id": "lora", "object": "model"},
]


def test_openai_clients_get_the_engines_own_cards():
    """Every field of an engine's card passes, known or not, in its order."""
    assert {"object": "list", "data": CARDS} == json.loads(model_list.openai_list(CARDS))
    assert list(CARDS[0]) == list(json.loads(model_list.openai_card(CARDS[0])))


def test_anthropic_clients_get_one_page_in_their_form():
    """The page names its first and last model and says that there is no other page."""
    page = json.loads(model_list.anthropic_list(CARDS))

    assert ("qwen", "lora", False) == (page["first_id"], page["last_id"], page["has_more"])
    assert {
        "type": "model", "id": "qwen", "display_name": "qwen", "created_at": "2023-11-14T22:13:20Z",
    } == page["data"][0]  # fmt: skip
    assert page["data"][1] == json.loads(model_list.anthropic_card(CARDS[1]))


def test_no_models_is_an_empty_page():
    """A fleet that lists nothing is an answer too."""
    assert {"data": [], "has_more": False, "first_id": None, "last_id": None} == json.loads(
        model_list.anthropic_list([])
    )


@pytest.mark.parametrize("created", [None, "yesterday", 1.5, True, -1, 1_700_000_000_000, 10**18, -(10**18), [], {}])
def test_an_odd_date_does_not_cost_the_list(created):
    """One engine's card with a date in milliseconds, or no date at all, leaves all models listed."""
    page = json.loads(model_list.anthropic_list([{"id": "odd", "created": created}, *CARDS]))

    assert ["odd", "qwen", "lora"] == [card["id"] for card in page["data"]]
    assert page["data"][0]["created_at"].endswith("Z")
