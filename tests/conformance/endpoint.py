"""What the cases are run against: a proxy, the engine behind it where that can be reached, and the model's name.

`TIDEGATE_CONFORMANCE_URL` names a running proxy, and the variables beside it say what stands behind it. Without it a
simulated engine is started, and `tidegate serve` in front of it. With `TIDEGATE_CONFORMANCE_COMPLETE=1` a case that
cannot be tried there fails instead of being skipped.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance.programs import Programs, start_proxy, start_simulated

_SIMULATED_MODEL: Final = "simulated-model"
_SPEED: Final = 50
"""Simulated seconds a real second: long answers still take long enough to be left."""


@dataclass(frozen=True)
class Endpoint:
    """Where the cases send their requests.

    Attributes:
        base_url: the proxy.
        direct_url: the engine behind it, for comparisons; None when it cannot be reached.
        model: a model that the engine serves.
        is_simulated: whether the engine is the simulated one, which sees images, has no tool grammar and no store.
        engine_log: the engine's access log, for what no answer shows.
    """

    base_url: str
    direct_url: str | None
    model: str
    is_simulated: bool
    engine_log: Path | None = None


def from_environment(environment: Mapping[str, str]) -> Endpoint | None:
    """The endpoint that the environment names, or None when it names none."""
    base_url = environment.get("TIDEGATE_CONFORMANCE_URL")
    if not base_url:
        return None
    log = environment.get("TIDEGATE_CONFORMANCE_ENGINE_LOG")
    return Endpoint(
        base_url=base_url.rstrip("/"),
        direct_url=environment.get("TIDEGATE_CONFORMANCE_DIRECT_URL", "").rstrip("/") or None,
        model=environment.get("TIDEGATE_CONFORMANCE_MODEL", "tiny"),
        is_simulated=environment.get("TIDEGATE_CONFORMANCE_SIMULATED") == "1",
        engine_log=Path(log) if log else None,
    )


@contextmanager
def simulated() -> Iterator[Endpoint]:
    """A fast simulated engine and the proxy in front of it, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="tidegate-conformance-") as logs, Programs(Path(logs)) as programs:
        engine = start_simulated(programs, _SIMULATED_MODEL, speed=_SPEED)
        proxy = start_proxy(programs, engine.url)
        yield Endpoint(base_url=proxy.url, direct_url=engine.url, model=_SIMULATED_MODEL, is_simulated=True)
