"""What runs share that judge single turns on a real engine: sessions that talk, a proxy's figures, and checks."""

import json
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final

from proxy.telemetry.metrics import CACHE_S
from tests.conformance.programs import Programs, Served, free_port
from tests.conformance.wire import Answer, ask, is_answering
from tests.real.engine import MODEL_NAMES
from tests.real.verdicts import Verdict

SESSION_WORDS: Final = 5_000
"""More than the 4,096 tokens from which on a lost prefix counts as a ghost miss."""
_WORDS: Final = ("self", "return", "import", "class", "value", "name", "None", "raise", "data", "path", "index", "text")
_PROXY_START_S: Final = 30.0


@dataclass
class Talk:
    """One session, whose prompt grows with each turn."""

    name: str
    messages: list[dict[str, str]] = field(default_factory=list)

    def turn(self, url: str, words: int, *, model: str = MODEL_NAMES[0]) -> Answer:
        """Say so many words and take the answer; each session has its own."""
        rng = random.Random(f"{self.name}/{len(self.messages)}")
        self.messages.append({"role": "user", "content": " ".join(rng.choices(_WORDS, k=words))})
        answer = self.ask(url, model)
        assert answer.status == 200, answer.body
        self.messages.append({"role": "assistant", "content": said(answer)})
        return answer

    def ask(self, url: str, model: str) -> Answer:
        """Send what was said so far, whatever becomes of it."""
        body = {"model": model, "messages": self.messages, "max_tokens": 8, "temperature": 0}
        return ask(url, "/v1/chat/completions", body, headers={"x-session-id": self.name})


def said(answer: Answer) -> str:
    """The text of an answer."""
    return str(answer.json()["choices"][0]["message"]["content"])


def cached_tokens(answer: Answer) -> int:
    """What the engine found in its cache."""
    return int((answer.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def figure(proxy: Served, series: str) -> float:
    """One series of a proxy's metrics page, 0 when it is not there; what has just happened is on it."""
    Event().wait(CACHE_S + 0.2)
    return sample(proxy.url, series)


def sample(url: str, series: str) -> float:
    """One series of a metrics page as it is now, 0 when it is not there."""
    page = ask(url, "/metrics", method="GET").body.decode()
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(f"{series} ")]
    return float(found[0]) if found else 0.0


def start_proxy_before(
    programs: Programs, name: str, backends: Sequence[Mapping[str, Any]], *, settings: Mapping[str, str] | None = None
) -> Served:
    """Put a proxy before backends, each as the configuration has it; other settings are as in the environment."""
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", programs.log(name))
    programs.start(
        name,
        [sys.executable, "-m", "proxy", "serve", "--port", str(port), "--log-format", "json"],
        is_ready=lambda: is_answering(served.url, "/readyz"),
        within_s=_PROXY_START_S,
        environment={"PYTHONUNBUFFERED": "1", "TIDEGATE_BACKENDS": json.dumps(list(backends)), **(settings or {})},
    )
    return served


def is_open(port: int) -> bool:
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@dataclass
class Checks:
    """What was found."""

    found: list[Verdict] = field(default_factory=list)

    def equal(self, what: str, seen: object, expected: object) -> None:
        """One thing that must be so."""
        self.found.append(Verdict(what, seen == expected, f"{seen}" if seen == expected else f"{seen}, not {expected}"))

    def holds(self, what: str, seen: object, *, is_so: bool) -> None:
        """One thing that must hold."""
        self.found.append(Verdict(what, is_so, str(seen)))
