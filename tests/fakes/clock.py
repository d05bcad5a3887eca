"""A clock that stands still until it is told to move."""


class FakeClock:
    """Monotonic seconds, moved by hand; fills the port `core.ports.Clock`."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time, which only `advance` moves."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
