"""Names that clients ask for and what is served under them. Pure.

Claude Code asks for names of Anthropic's for its small calls, whatever the main model is called.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.core.globs import Globs


class ModelNames:
    """Resolves asked names by exact aliases, then by patterns, in the order in which they are configured.

    Once: what an alias stands for is a served name, and no alias of it is looked for.

    Args:
        aliases: asked name, or pattern with `*` and `?`, to served name.
        is_served: whether some backend lists a name; a pattern never hides one that is.
    """

    def __init__(self, aliases: Mapping[str, str], is_served: Callable[[str], bool]) -> None:
        self._aliases = Globs(aliases)
        self._is_served = is_served

    def served_name(self, asked: str) -> str:
        """The name to send to an engine; the asked one where no alias applies."""
        exact = self._aliases.exact.get(asked)
        if exact is not None:
            return exact
        return asked if self._is_served(asked) else self._aliases.matching(asked) or asked

    def listed(self, cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The cards that clients are shown: the engines' own, and one an exact alias whose model is there."""
        by_id = {card["id"]: card for card in cards}
        aliased = {
            asked: {**by_id[served], "id": asked, "root": served}
            for asked, served in self._aliases.exact.items()
            if served in by_id
        }
        return [card for card in cards if card["id"] not in aliased] + list(aliased.values())
