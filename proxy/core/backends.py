"""One engine behind us, as a value: where it is, what it is called, how to authenticate to it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backend:
    """One engine.

    Attributes:
        name: unique; the metric label and the receipt header.
        host: host name or address to connect to.
        path_prefix: prepended to every target, empty or `/something`.
        authority: value of the Host header.
        api_key: sent as a bearer token; never printed.
    """

    name: str
    host: str
    port: int
    authority: str
    is_tls: bool = False
    path_prefix: str = ""
    api_key: str | None = field(default=None, repr=False)
