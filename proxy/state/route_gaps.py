"""Which backends lack which route, as their own 404 and 405 answers said. Written and read by dispatch.

Bounded: backends times the few routes that there are. Forgotten when a backend goes down or its engine restarts, since
what comes back may be another version.
"""


class RouteGaps:
    """Routes that backends do not have.

    Attributes:
        missing: by backend; empty, as it nearly always is, while nothing is known to be missing anywhere.
    """

    def __init__(self) -> None:
        self.missing: dict[str, set[str]] = {}

    def note(self, backend_name: str, route_name: str) -> bool:
        """A backend answered that it has no such route.

        Returns:
            Whether that is news.
        """
        missing = self.missing.setdefault(backend_name, set())
        is_news = route_name not in missing
        missing.add(route_name)
        return is_news

    def lacks(self, backend_name: str, route_name: str) -> bool:
        """Whether a backend is known to be without a route."""
        return route_name in self.missing.get(backend_name, ())

    def forget(self, backend_name: str) -> None:
        """The engine was restarted, or is gone: what it has is unknown again."""
        self.missing.pop(backend_name, None)

    def __repr__(self) -> str:
        return f"<RouteGaps { ({name: sorted(routes) for name, routes in self.missing.items()}) }>"
