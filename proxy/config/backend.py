"""What is configured about one backend, and what an address of one may look like.

Built by `loading.py` as part of a whole configuration. Never reads a file, the environment or the network.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, Strict, ValidationInfo, field_validator

from proxy.config.kv_events import KvEventsConfig
from proxy.config.values import VISIBLE_ASCII, Secret, SectionConfig, Tag, setting

_DEFAULT_PORTS = {"http": 80, "https": 443}


def _split_url(url: str) -> SplitResult:
    """A backend address in parts.

    Raises:
        ValueError: it is no address that requests can be sent to; the message never repeats the address.
    """
    if not VISIBLE_ASCII.fullmatch(url):
        raise ValueError("must be visible ASCII without spaces (write a name in its punycode form)")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL: check the host and that the port is 1 to 65535") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must not hold credentials; use api_key or api_key_env")
    if not parts.hostname or port == 0 or parts.netloc.endswith(":"):
        raise ValueError("needs a host, and a port of 1 to 65535 if one is given")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError("holds a host that cannot exist: a part of it is empty or longer than 63 characters") from None
    if "?" in url or "#" in url:
        raise ValueError("must not hold a query or a fragment")
    return parts


def _effective_port(parts: SplitResult) -> int:
    """The TCP port of an address, the scheme's own when none is written."""
    return parts.port or _DEFAULT_PORTS[parts.scheme]


def _backend_url(url: str) -> str:
    parts = _split_url(url)
    prefix = parts.path.rstrip("/")
    if prefix.endswith("/v1"):
        raise ValueError("must not end in /v1: the path that the client asked for is appended")
    if "//" in prefix or any(segment in {".", ".."} for segment in prefix.split("/")):
        raise ValueError("must not hold empty, . or .. path segments")
    return f"{parts.scheme}://{parts.netloc.lower()}{prefix}"


BackendUrl = Annotated[str, AfterValidator(_backend_url)]


class BackendConfig(SectionConfig):
    """One engine."""

    url: BackendUrl = Field(
        description="Address of the engine, http or https, with an optional path prefix that every forwarded path is "
        "put behind. There is no default. Leave out /v1: it comes with the request.",
    )
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,255}$", validate_default=True)] = setting(
        "",
        "Name in metrics, logs and the x-tidegate-backend header; letters, digits and . _ : - only, unique.",
        "Renaming a backend starts new metric series.",
        shown="host:port of the url",
    )
    api_key: Secret | None = setting(
        None,
        "Key that is sent to this engine as a bearer token in place of the client's own credentials.",
        "A key in a file is readable by whoever reads the file; api_key_env avoids that.",
        shown="null, none is sent",
    )
    api_key_env: Annotated[str | None, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = setting(
        None,
        "Name of an environment variable that holds the key, instead of api_key.",
        "A variable that is not set stops the start; a name that begins with TIDEGATE_ is taken by the settings.",
        shown="null",
    )

    kv_cache_tokens: Annotated[int | None, Field(ge=1_000)] = setting(
        None,
        "Size of this engine's KV cache in tokens, of several engines behind the url together, for an engine whose "
        "metrics page does not tell it; where it does, the page counts.",
        "An engine without a size is not limited. Too large makes turns lose their prefixes until misses lower the "
        "limit, too small holds agents back.",
        shown="null, read from the engine",
    )
    data_parallel: Literal["auto", "ranks", "sum"] = setting(
        "auto",
        "Several engines behind this url (vLLM's --data-parallel-size): ranks admits to each by itself and sends every "
        "turn to one with the header X-data-parallel-rank, but for /v1/responses, where it is ignored; sum takes them "
        "for one pool, a little smaller than their sum, and leaves the choice to the backend; auto is ranks for vLLM "
        "and sum for others.",
        "An engine that ignores the header spreads a session's turns over all its caches; sum does so always.",
    )
    weight: Annotated[float, Strict(), Field(gt=0, le=1_000, allow_inf_nan=False)] = setting(
        1.0,
        "Share of new sessions that this engine gets beside others as large: 2 is twice as many.",
        "Sessions stay where they are; a weight changes where the next ones go, and by nothing what fits: where room "
        "is short, that decides.",
    )
    tags: tuple[Tag, ...] = setting(
        (),
        "What models.tags may ask for, e.g. [h200, eu]; letters, digits and . _ : - only.",
        "A tag that models.tags names keeps other backends from those models.",
        shown="[], none",
    )
    kv_events: KvEventsConfig | None = setting(
        None,
        "Where a vLLM publishes the events of its KV cache: endpoint, replay_endpoint, topic. They tell at once when "
        "the cache was cleared and which prefixes are gone; without them misses tell. Needs the extra kv-events.",
        "For one engine behind this url, not for several (data parallel). Whoever can publish there can make sessions "
        "lose their place.",
        shown="null, not listened to",
    )

    @field_validator("name", mode="before")
    @classmethod
    def _name_from_url(cls, name: Any, info: ValidationInfo) -> Any:
        if name != "":
            return name
        if "url" not in info.data:
            return "unnamed"  # the url has its own fault; a second one about the name would only distract
        parts = _split_url(info.data["url"])
        return re.sub(r"[^A-Za-z0-9._:-]", "-", f"{parts.hostname}:{_effective_port(parts)}")

    @property
    def _parts(self) -> SplitResult:
        return _split_url(self.url)

    @property
    def is_tls(self) -> bool:
        """Whether the engine is spoken to over TLS."""
        return self._parts.scheme == "https"

    @property
    def host(self) -> str:
        """Host name or address to connect to, without the brackets of IPv6."""
        return self._parts.hostname or ""

    @property
    def port(self) -> int:
        """TCP port to connect to."""
        return _effective_port(self._parts)

    @property
    def authority(self) -> str:
        """What the Host header says: host, with the port as written in the url."""
        return self._parts.netloc

    @property
    def path_prefix(self) -> str:
        """What is put before every forwarded path: empty, or `/...` without a closing slash."""
        return self._parts.path


def repeated(backends: Iterable[BackendConfig]) -> list[str]:
    """What is wrong with these backends taken together: each name and each url may appear once."""
    known = tuple(backends)
    faults = []
    for attribute in ("name", "url"):
        counts = Counter(getattr(backend, attribute) for backend in known)
        faults += [f"{attribute} {value!r} is used {count} times" for value, count in counts.items() if count > 1]
    return faults
