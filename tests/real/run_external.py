"""Prefixes that come back from outside an engine's cache: `python -m tests.real.run_external INSTALL LMCACHE [TIERS]`.

INSTALL is the folder that setup-vllm.sh printed, LMCACHE the one of setup-lmcache.sh, or nothing. A tier is `example`,
vLLM's own connector to a folder of files, or `lmcache`, a real LMCache server. For each an engine with a small cache is
started: two sessions talk, strangers push them out past the proxy, and they come back twice. At the end the tier loses
all that it has, where it can be made to. Exit status 0 when every check holds.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.programs import Programs, Served, clean_up_on_sigterm, free_port, say
from tests.conformance.wire import Answer, ask, eventually
from tests.real.engine import MODEL_NAMES, Size, start_vllm
from tests.real.story import SESSION_WORDS, Checks, Talk, cached_tokens, figure, is_open, sample, start_proxy_before
from tests.real.trial import run_trial
from tests.real.verdicts import tell_verdicts

TIERS: Final = ("example", "lmcache")
SMALL: Final = Size(kv_blocks=250, running_at_once=8, context_tokens=8_192)
"""32,000 tokens: two sessions fit beside any stranger, so the proxy sees no reason to give up their places."""
STRANGER_WORDS: Final = 7_000
STRANGERS: Final = 6
"""With the sessions, more than one and a half times the cache."""
LEAST_FETCHED: Final = 4_608
"""Of a session's 5,010 tokens: LMCache keeps whole chunks of 256."""
LEAST_SHARE: Final = 0.4
MOST_FADED: Final = 0.1
"""The proxy's share is of its last reports, older ones fade; the engine's own counts do not."""
_SOON_S: Final = 5.0
_LMCACHE_START_S: Final = 60.0
_USED_WRONG: Final = 2

GHOSTS: Final = 'tidegate_prefix_ghost_misses_total{backend="engine"}'
LIMIT: Final = 'tidegate_backend_admission_ratio{backend="engine"}'
SHARE: Final = 'tidegate_backend_external_ratio{backend="engine"}'
CACHED: Final = f'tidegate_tokens_total{{kind="cached",model="{MODEL_NAMES[0]}"}}'


@dataclass(frozen=True)
class Sources:
    """Where an engine's prompt tokens came from, as it counts them itself."""

    computed: int
    found: int
    fetched: int

    @classmethod
    def of(cls, engine: Served) -> "Sources":
        """All since it started."""
        series = f'vllm:prompt_tokens_by_source_total{{engine="0",model_name="{MODEL_NAMES[0]}",source="%s"}}'
        names = ("local_compute", "local_cache_hit", "external_kv_transfer")
        return cls(*(int(sample(engine.url, series % name)) for name in names))

    def since(self, before: "Sources") -> "Sources":
        """What came in between."""
        return Sources(self.computed - before.computed, self.found - before.found, self.fetched - before.fetched)

    @property
    def share(self) -> float:
        """Of what was not in the engine's cache, the part that came from outside."""
        return self.fetched / max(1, self.fetched + self.computed)


def start_lmcache(programs: Programs, install: Path, lmcache: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Serve a real LMCache; how an engine is told of it, and the environment that both need."""
    port = free_port()
    environment = {"PYTHONPATH": str(lmcache), "LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1"}
    # An engine on a CPU hands its blocks over by itself; by default the server wants to reach into a GPU for them.
    command = [
        str(install / "venv/bin/python"), "-m", "lmcache.v1.multiprocess.server",
        "--host", "127.0.0.1", "--port", str(port), "--supported-transfer-mode", "auto",
        "--chunk-size", "256", "--l1-size-gb", "1", "--eviction-policy", "LRU", "--disable-observability",
    ]  # fmt: skip
    programs.start(
        "lmcache", command, is_ready=lambda: is_open(port), within_s=_LMCACHE_START_S, environment=environment
    )
    places = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
    # Both hash tokens, and must come to the same.
    return {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": places}, {
        **environment,
        "PYTHONHASHSEED": "0",
    }


def fill(engine: Served) -> None:
    """Strangers push everybody else out of the engine's cache, past the proxy."""
    for number in range(STRANGERS):
        Talk(f"stranger-{number}").turn(engine.url, STRANGER_WORDS)


def come_back(what: str, talks: Sequence[Talk], engine: Served, proxy: Served, checks: Checks) -> list[Answer]:
    """Everybody's next turn, whose prefix is not in the engine's cache any more."""
    before = Sources.of(engine)
    answers = [talk.turn(proxy.url, 10) for talk in talks]
    eventually(lambda: Sources.of(engine).since(before).computed > 0, within_s=_SOON_S, every_s=0.2)
    came, cached = Sources.of(engine).since(before), [cached_tokens(answer) for answer in answers]
    receipts = {(answer.header("x-tidegate-admission"), answer.header("x-tidegate-prefix")) for answer in answers}
    checks.equal(f"{what}: let in as", receipts, {("resident", "warm")})
    checks.holds(f"{what}: fetched", came, is_so=came.fetched >= LEAST_FETCHED * len(talks))
    checks.equal(
        f"{what}: cached tokens of their usage are those found and fetched", sum(cached), came.found + came.fetched
    )
    checks.equal(f"{what}: ghost misses", figure(proxy, GHOSTS), 0)
    return answers


def learn(engine: Served, proxy: Served, checks: Checks) -> list[Talk]:
    """Sessions that were pushed out come back from outside; the sessions."""
    talks = [Talk("one"), Talk("two")]
    answers = [talk.turn(proxy.url, SESSION_WORDS) for talk in talks]
    limit = figure(proxy, LIMIT)
    checks.equal("cached before anything was", [cached_tokens(answer) for answer in answers], [0, 0])
    checks.equal("the share while nothing was fetched", figure(proxy, SHARE), 0)
    for what in ("first return", "second return"):
        say("strangers fill the cache ...")
        fill(engine)
        answers += come_back(what, talks, engine, proxy, checks)
    share, counted = figure(proxy, SHARE), Sources.of(engine).share
    checks.holds(
        "the share that was learned, beside the engine's own count",
        f"{share:.3f}, {counted:.3f}",
        is_so=counted > LEAST_SHARE and abs(share - counted) < MOST_FADED,
    )
    shown = ask(proxy.url, "/status.json", method="GET").json()["backends"][0]["kv"]["external_ratio"]
    checks.holds("the status page has it too", shown, is_so=abs(shown - share) < 0.01)
    checks.equal("cached tokens on the metrics page", figure(proxy, CACHED), sum(map(cached_tokens, answers)))
    checks.equal("the limit stays", figure(proxy, LIMIT), limit)
    return talks


def lose(outside: Path, talk: Talk, engine: Served, proxy: Served, checks: Checks) -> None:
    """What is neither in the engine nor outside is a ghost miss: the checks before this one could have failed."""
    for prompt in outside.iterdir():
        shutil.rmtree(prompt)
    say("strangers fill the cache, and nothing is outside ...")
    fill(engine)
    cold = talk.turn(proxy.url, 10)
    seen = cold.header("x-tidegate-prefix"), cached_tokens(cold), figure(proxy, GHOSTS)
    checks.equal("lost outside as well: prefix, cached, ghost misses", seen, ("warm", 0, 1))


def play(programs: Programs, install: Path, lmcache: Path, tier: str, folder: Path) -> bool:
    """The story with one tier."""
    checks, outside = Checks(), folder / "outside"
    environment: Mapping[str, str] = {}
    connector: Mapping[str, Any] = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(outside)},
    }
    if tier == "lmcache":
        connector, environment = start_lmcache(programs, install, lmcache)
    flags = ["--kv-transfer-config", json.dumps({**connector, "kv_role": "kv_both"})]
    engine = start_vllm(programs, install, flags, size=SMALL, environment=environment)
    proxy = start_proxy_before(programs, "tidegate", [{"url": engine.url, "name": "engine"}])
    talks = learn(engine, proxy, checks)
    if tier == "example":
        lose(outside, talks[0], engine, proxy, checks)
    return tell_verdicts(checks.found)


def main(install: Path, lmcache: str, tiers: Sequence[str]) -> int:
    """Run it; keep the logs when something failed."""
    if unknown := set(tiers) - set(TIERS):
        say(f"test-external: TIERS has {', '.join(sorted(unknown))}, which is none of {', '.join(TIERS)}")
        return _USED_WRONG
    wanted = tiers or TIERS
    if "lmcache" in wanted and not lmcache:
        say("test-external: LMCache is not installed; it is left out")
        wanted = [tier for tier in wanted if tier != "lmcache"]
    statuses = [try_tier(install, lmcache, tier) for tier in wanted]
    return next(filter(None, statuses), 0)


def try_tier(install: Path, lmcache: str, tier: str) -> int:
    """Run the story with one tier; its exit status."""
    say(f"--- {tier}")
    return run_trial(
        f"test-external-{tier}", lambda programs, folder: play(programs, install, Path(lmcache), tier, folder)
    )


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
