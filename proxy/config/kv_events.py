"""Where one engine publishes the events of its KV cache. Part of a backend's configuration."""

import re
from importlib.util import find_spec
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from proxy.config.values import SectionConfig, setting

_ENDPOINT = re.compile(r"tcp://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def _endpoint(address: str) -> str:
    """An address that can be connected to.

    Raises:
        ValueError: it is none; `tcp://*:5557` is what an engine listens on, not where it is.
    """
    matched = _ENDPOINT.fullmatch(address)
    if matched is None or not 0 < int(matched[2]) <= 65_535:
        raise ValueError("must be tcp://HOST:PORT, with the engine's host")
    return address


Endpoint = Annotated[str, AfterValidator(_endpoint)]


class KvEventsConfig(SectionConfig):
    """vLLM's `--kv-events-config`, from the other side. Where the extra `kv-events` is missing, that is a fault."""

    endpoint: Endpoint = Field(
        description="Where the engine publishes, tcp://HOST:PORT. Default: none, it has to be given."
    )
    replay_endpoint: Endpoint | None = setting(
        None,
        "Where the engine sends again what was missed, tcp://HOST:PORT; its own replay_endpoint.",
        "Without it, what was missed is lost: what was learned from events is forgotten, and learned anew.",
        shown="null, nothing is sent again",
    )
    topic: Annotated[str, Field(max_length=255)] = setting(
        "",
        "The engine's topic; others are not listened to.",
        "A topic that the engine does not use means that nothing comes.",
        shown="empty, every topic",
    )

    @model_validator(mode="after")
    def _is_installed(self) -> Self:
        if find_spec("zmq") is None:
            raise ValueError("needs pyzmq, which is not installed: pip install 'tidegate[kv-events]'")
        return self
