"""KV events of a real vLLM: `python -m tests.real.run_kv_events INSTALL`.

INSTALL is the folder that setup-vllm.sh printed. Two proxies stand before one engine; one listens to its events and one
is deaf. Somebody else fills the engine's cache twice over, the cache is cleared, and the way of the events is cut for
a while. Exit status 0 when every check holds.
"""

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

from tests.conformance.programs import Programs, Served, clean_up_on_sigterm, end_group, free_port, say
from tests.conformance.wire import ask, eventually, gauge
from tests.real.engine import Size, start_vllm
from tests.real.story import SESSION_WORDS, Checks, Talk, cached_tokens, figure, is_open, start_proxy_before
from tests.real.trial import run_trial
from tests.real.verdicts import tell_verdicts

SMALL: Final = Size(kv_blocks=250, running_at_once=8, context_tokens=16_384)
"""32,000 tokens."""
FLOOD_WORDS: Final = 12_000
FLOODS: Final = 6
"""Twice the cache: what the strangers brought first is evicted as well, which shows that all before it is gone."""
_APART_S: Final = 1.5
"""Who ended less than a second before a removed block was stored keeps its place."""
_SOON_S: Final = 5.0


@dataclass
class Stage:
    """The programs of the run."""

    programs: Programs
    install: Path
    folder: Path
    events_port: int = field(default_factory=free_port)
    replay_port: int = field(default_factory=free_port)
    door_port: int = field(default_factory=free_port)

    def start_engine(self) -> Served:
        """One that publishes, and lets its cache be cleared over HTTP."""
        publishing = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
        }
        return start_vllm(
            self.programs,
            self.install,
            ["--kv-events-config", json.dumps(publishing)],
            size=SMALL,
            environment={"VLLM_SERVER_DEV_MODE": "1"},
        )

    def open_door(self) -> None:
        """Between the engine's events and the proxy stands a door that can be shut."""
        ports = (str(self.door_port), str(self.events_port))
        self.programs.start(
            "door",
            [sys.executable, "-m", "tests.real.front", *ports, str(self.folder / "never")],
            is_ready=lambda: is_open(self.door_port),
            within_s=20,
        )

    def shut_door(self) -> None:
        """As if the network were gone."""
        end_group(self.programs.latest("door"))

    def start_proxy(self, name: str, engine: Served, kv_events: Mapping[str, str] | None) -> Served:
        """Put a proxy before the engine."""
        backend = {"url": engine.url, "name": "engine", "kv_events": kv_events}
        return start_proxy_before(self.programs, name, [backend])


CLEARED: Final = 'tidegate_kv_corrections_total{backend="engine",reason="cleared"}'
EVICTED: Final = 'tidegate_kv_corrections_total{backend="engine",reason="evicted"}'
REPLAYED: Final = 'tidegate_kv_event_gaps_total{backend="engine",outcome="replayed"}'
LOST: Final = 'tidegate_kv_event_gaps_total{backend="engine",outcome="lost"}'
REMOVED: Final = 'tidegate_kv_events_total{backend="engine",event="removed"}'
STORED: Final = 'tidegate_kv_events_total{backend="engine",event="stored"}'
GHOSTS: Final = 'tidegate_prefix_ghost_misses_total{backend="engine"}'
LIMIT: Final = 'tidegate_backend_admission_ratio{backend="engine"}'
RESIDENTS: Final = 'tidegate_sessions{backend="engine",state="idle"}'


def evict(engine: Served, listening: Served, deaf: Served, checks: Checks) -> None:
    """Strangers fill the cache twice over, past both proxies."""
    told = [Talk("told-1"), Talk("told-2")]
    untold = Talk("untold")
    for talk in told:
        talk.turn(listening.url, SESSION_WORDS)
    untold.turn(deaf.url, SESSION_WORDS)
    checks.equal("residents before", figure(listening, RESIDENTS), 2)
    warm = told[0].turn(listening.url, 10)
    admission, cached = warm.header("x-tidegate-admission"), cached_tokens(warm)
    checks.holds("a turn before is warm", f"{admission}, {cached} cached", is_so=admission == "resident" and cached > 0)
    Event().wait(_APART_S)
    say("strangers fill the cache twice over ...")
    for number in range(FLOODS):
        Talk(f"stranger-{number}").turn(engine.url, FLOOD_WORDS)
    eventually(lambda: figure(listening, EVICTED) == 2, within_s=_SOON_S, every_s=0.2)
    checks.holds("blocks stored and removed", f"{figure(listening, STORED):.0f}, {figure(listening, REMOVED):.0f}",
                 is_so=figure(listening, REMOVED) > 0)  # fmt: skip
    checks.equal("sessions noticed as evicted", figure(listening, EVICTED), 2)
    checks.equal("residents left", figure(listening, RESIDENTS), 0)
    cold, ghost = told[0].turn(listening.url, 10), untold.turn(deaf.url, 10)
    checks.equal("both come back cold", (cached_tokens(cold), cached_tokens(ghost)), (0, 0))
    checks.equal("who was told lets it in as", cold.header("x-tidegate-admission"), "returning")
    checks.equal("ghost misses of who was told", figure(listening, GHOSTS), 0)
    checks.equal("who was not told lets it in as", ghost.header("x-tidegate-admission"), "resident")
    checks.equal("ghost misses of who was not", figure(deaf, GHOSTS), 1)


def clear(engine: Served, listening: Served, checks: Checks) -> None:
    """Somebody clears the prefix cache."""
    before, limit = figure(listening, RESIDENTS), figure(listening, LIMIT)
    talk = Talk("cleared")
    talk.turn(listening.url, SESSION_WORDS)
    checks.equal("residents before", figure(listening, RESIDENTS), before + 1)
    eventually(lambda: gauge(engine.url, "vllm:num_requests_running") == 0, within_s=_SOON_S)
    checks.equal("clearing is answered with", ask(engine.url, "/reset_prefix_cache").status, 200)
    # An engine tells of it with its next step, and an idle one takes none.
    Talk("nudge").turn(engine.url, 10)
    eventually(lambda: figure(listening, CLEARED) > 0, within_s=_SOON_S, every_s=0.2)
    checks.equal("sessions noticed as cleared", figure(listening, CLEARED), before + 1)
    checks.equal("residents left", figure(listening, RESIDENTS), 0)
    checks.equal("the limit stays", figure(listening, LIMIT), limit)
    again = talk.turn(listening.url, 10)
    seen = again.header("x-tidegate-admission"), cached_tokens(again), figure(listening, GHOSTS)
    checks.equal("it comes back as, cached, ghost misses", seen, ("returning", 0, 0))


def cut(stage: Stage, engine: Served, listening: Served, checks: Checks) -> None:
    """The events cannot come for a while; the engine sends again what was missed."""
    stored = figure(listening, STORED)
    stage.shut_door()
    Talk("unheard").turn(engine.url, SESSION_WORDS)
    checks.equal("blocks heard of meanwhile", figure(listening, STORED) - stored, 0)
    stage.open_door()
    Event().wait(_APART_S)  # the listener's library connects again by itself

    def is_told() -> bool:
        Talk(f"heard-{random.random()}").turn(engine.url, 300)
        return figure(listening, REPLAYED) + figure(listening, LOST) > 0

    eventually(is_told, within_s=20, every_s=0.5)
    checks.equal("gaps that were sent again, and lost", (figure(listening, REPLAYED), figure(listening, LOST)), (1, 0))
    checks.holds("blocks heard of after all", f"{figure(listening, STORED) - stored:.0f}",
                 is_so=figure(listening, STORED) - stored >= SESSION_WORDS // 128)  # fmt: skip


def play(programs: Programs, install: Path, folder: Path) -> bool:
    """The whole story."""
    stage, checks = Stage(programs, install, folder), Checks()
    engine = stage.start_engine()
    stage.open_door()
    places = {"endpoint": stage.door_port, "replay_endpoint": stage.replay_port}
    kv_events = {name: f"tcp://127.0.0.1:{port}" for name, port in places.items()}
    listening, deaf = stage.start_proxy("tidegate", engine, kv_events), stage.start_proxy("deaf", engine, None)
    Event().wait(_APART_S)  # a subscription takes a moment, and what was published before it is not sent again
    evict(engine, listening, deaf, checks)
    clear(engine, listening, checks)
    cut(stage, engine, listening, checks)
    return tell_verdicts(checks.found)


def main(install: Path) -> int:
    """Run it; keep the logs when something failed."""
    return run_trial("test-kv-events", lambda programs, folder: play(programs, install, folder))


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1])))
