"""The list of models in the form that the asking client expects: OpenAI's, or Anthropic's."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

Card = Mapping[str, Any]


def openai_list(cards: Sequence[Card]) -> bytes:
    """`{"object": "list", "data": [...]}` with the engines' own cards."""
    return orjson.dumps({"object": "list", "data": list(cards)})


def openai_card(card: Card) -> bytes:
    """One engine's card as it gave it."""
    return orjson.dumps(card)


def anthropic_list(cards: Sequence[Card]) -> bytes:
    """Anthropic's page of models; there is only one page."""
    data = [_anthropic(card) for card in cards]
    page = {
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
    return orjson.dumps(page)


def anthropic_card(card: Card) -> bytes:
    """One model in Anthropic's form."""
    return orjson.dumps(_anthropic(card))


def _anthropic(card: Card) -> dict[str, Any]:
    created = card.get("created")
    try:
        at = datetime.fromtimestamp(created if isinstance(created, int) else 0, UTC)
    except (ValueError, OverflowError, OSError):  # a date beyond the calendar, or not in seconds
        at = datetime.fromtimestamp(0, UTC)
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": at.isoformat().replace("+00:00", "Z"),
    }
