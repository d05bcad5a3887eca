"""Where a numbered stream of messages stands: what came in order, what is missing, and whether it began anew.

Written by whoever reads the stream. Two numbers.
"""

from enum import StrEnum, unique


@unique
class Arrival(StrEnum):
    """What a message's number says."""

    NEXT = "next"
    GAP = "gap"
    RESTART = "restart"


class EventOrder:
    """One stream.

    Attributes:
        expected: the number that comes next; None before the first message, which may have any.
    """

    def __init__(self) -> None:
        self.expected: int | None = None

    def see(self, number: int) -> Arrival:
        """A message has come; unless something is missing before it, it is taken.

        A number below the expected one is the first of another process: nothing comes twice.
        """
        if self.expected is not None and number > self.expected:
            return Arrival.GAP
        is_next = self.expected is None or number == self.expected
        self.expected = number + 1
        return Arrival.NEXT if is_next else Arrival.RESTART

    def see_replayed(self, number: int) -> bool:
        """A message that was missing has come after all; says whether it is the next one, and then it is taken."""
        if number != self.expected:
            return False
        self.expected = number + 1
        return True

    def skip_to(self, number: int) -> None:
        """What is missing before this number will not come."""
        self.expected = number

    def __repr__(self) -> str:
        return f"<EventOrder: {self.expected} is next>"
