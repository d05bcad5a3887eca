"""LoRA adapters of a real vLLM: `python -m tests.real.run_lora INSTALL`.

INSTALL is the folder that setup-vllm.sh printed. One proxy stands before an engine with an adapter, another before that
engine and a simulated one without. A session changes between the model and its adapter; an adapter is loaded, put in
another's place and unloaded while both run. Exit status 0 when every check holds.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.programs import Programs, Served, clean_up_on_sigterm, say, start_simulated
from tests.conformance.wire import Answer, ask, eventually
from tests.real.engine import MODEL_NAMES, Size, start_vllm
from tests.real.story import SESSION_WORDS, Checks, Talk, cached_tokens, figure, said, start_proxy_before
from tests.real.trial import run_trial
from tests.real.verdicts import tell_verdicts

BASE: Final = MODEL_NAMES[0]
AT_START: Final = "poet"
LATER: Final = "bard"
NOBODY: Final = "nobody"
SMALL: Final = Size(kv_blocks=250, running_at_once=8, context_tokens=8_192)
"""32,000 tokens: four sessions."""
ROUTED: Final = 6
"""Requests at once: as many as would be spread over two engines that are alike."""
_SIMULATED_SPEED: Final = 10
_MODELS_INTERVAL: Final = {"TIDEGATE_HEALTH__MODELS_INTERVAL_S": "5"}
_LISTED_WITHIN_S: Final = 15.0
"""That interval, and a probe more."""

GHOSTS: Final = 'tidegate_prefix_ghost_misses_total{backend="engine"}'
BREAKS: Final = 'tidegate_prefix_breaks_total{reason="model"}'


@dataclass(frozen=True)
class Adapters:
    """Two that answer differently, and the engine that takes them."""

    first: Path
    second: Path
    engine: Served

    def load(self, name: str, path: Path) -> Answer:
        """Tell the engine itself, as whoever runs it does."""
        return ask(self.engine.url, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    def unload(self, name: str) -> Answer:
        """The same, the other way."""
        return ask(self.engine.url, "/v1/unload_lora_adapter", {"lora_name": name})


def make_adapters(install: Path, folder: Path) -> Sequence[Path]:
    """Two of them."""
    paths = [folder / f"adapter-{seed}" for seed in (1, 2)]
    make = [str(install / "venv/bin/python"), str(Path(__file__).with_name("make_adapter.py")), str(install / "model")]
    for seed, path in enumerate(paths, start=1):
        subprocess.run([*make, str(path), str(seed)], check=True)
    return paths


def listed(proxy: Served) -> Mapping[str, Any]:
    """The models that a proxy lists, each with the one that it is an adapter of."""
    cards = ask(proxy.url, "/v1/models", method="GET").json()["data"]
    return {card["id"]: card.get("parent") for card in cards}


def message(proxy: Served, model: str) -> Answer:
    """Ask in Anthropic's dialect."""
    body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
    return ask(proxy.url, "/v1/messages", body)


def seen(answer: Answer) -> tuple[str | None, bool]:
    """What the proxy believed of a prompt, and whether the engine found any of it."""
    return answer.header("x-tidegate-prefix"), cached_tokens(answer) > 0


def serve(alone: Served, both: Served, checks: Checks) -> None:
    """An adapter is a model like any other, and only one of two engines has it."""
    checks.equal("listed", listed(alone), {**dict.fromkeys(MODEL_NAMES), AT_START: BASE})
    checks.equal("listed over both", listed(both), {**dict.fromkeys(MODEL_NAMES), AT_START: BASE})
    own, adapted = said(Talk("served").turn(alone.url, 20)), Talk("served").turn(alone.url, 20, model=AT_START)
    checks.holds("the same prompt, answered by each", f"{own!r}, {said(adapted)!r}", is_so=own != said(adapted))
    checks.equal("by its name", adapted.json()["model"], AT_START)
    told = message(alone, AT_START)
    checks.equal("in Anthropic's dialect too", (told.status, told.json()["model"]), (200, AT_START))
    answers = [Talk(f"routed-{number}").turn(both.url, 20, model=AT_START) for number in range(ROUTED)]
    checks.equal("goes to", {answer.header("x-tidegate-backend") for answer in answers}, {"engine"})
    others = [Talk(f"plain-{number}").turn(both.url, 20) for number in range(ROUTED)]
    places = {answer.header("x-tidegate-backend") for answer in others}
    checks.holds("the model itself goes to", places, is_so="simulated" in places)


def refuse(proxy: Served, checks: Checks) -> None:
    """Names that nobody has, in each dialect's words."""
    answer, told = Talk("refused").ask(proxy.url, NOBODY), message(proxy, NOBODY)
    error = answer.json()["error"]
    checks.equal("unknown, OpenAI", (answer.status, error["type"], error["code"]),
                 (404, "not_found_error", "refused_not_found"))  # fmt: skip
    checks.equal("unknown, Anthropic", (told.status, told.json()["error"]["type"]), (404, "not_found_error"))
    checks.holds("and what there is", error["message"], is_so=AT_START in error["message"])
    steering = ask(proxy.url, "/v1/load_lora_adapter", {"lora_name": NOBODY, "lora_path": "/nowhere"})
    checks.equal("loading through the proxy", steering.status, 404)


def keep_apart(proxy: Served, checks: Checks) -> None:
    """The same prompt, for the model and for its adapter: neither is taken for the other's prefix."""
    talk, breaks = Talk("apart"), figure(proxy, BREAKS)
    talk.turn(proxy.url, SESSION_WORDS)
    checks.equal("the adapter after its model", seen(talk.turn(proxy.url, 10, model=AT_START)), ("cold", False))
    checks.equal("counted as another model's", figure(proxy, BREAKS) - breaks, 1)
    checks.equal("the adapter again", seen(talk.turn(proxy.url, 10, model=AT_START)), ("warm", True))
    checks.equal("ghost misses", figure(proxy, GHOSTS), 0)


def load_later(adapters: Adapters, proxy: Served, checks: Checks) -> Talk:
    """One that is loaded is found at once, just after it was refused; a session of it."""
    talk = Talk("later")
    checks.equal("before it is loaded", talk.ask(proxy.url, LATER).status, 404)
    checks.equal("loading", adapters.load(LATER, adapters.second).status, 200)
    checks.equal("its first request", seen(talk.turn(proxy.url, SESSION_WORDS, model=LATER)), ("cold", False))
    checks.equal("its second", seen(talk.turn(proxy.url, 10, model=LATER)), ("warm", True))
    checks.equal("listed with its parent", listed(proxy).get(LATER), BASE)
    return talk


def replace(adapters: Adapters, talk: Talk, proxy: Served, checks: Checks) -> None:
    """Other weights under the same name: what was computed with the old ones is no use."""
    before = said(talk.ask(proxy.url, LATER))
    statuses = adapters.unload(LATER).status, adapters.load(LATER, adapters.first).status
    checks.equal("another in its place", statuses, (200, 200))
    eventually(lambda: is_listed_as(proxy, LATER, adapters.first), within_s=_LISTED_WITHIN_S, every_s=0.2)
    answer = talk.ask(proxy.url, LATER)
    checks.holds("the same prompt, answered by each", f"{before!r}, {said(answer)!r}", is_so=before != said(answer))
    checks.equal("and nobody believed it warm", seen(answer), ("cold", False))
    checks.equal("ghost misses", figure(proxy, GHOSTS), 0)
    checks.equal("then it is warm again", seen(talk.turn(proxy.url, 10, model=LATER)), ("warm", True))


def is_listed_as(proxy: Served, model: str, path: Path) -> bool:
    """Whether a proxy knows where the weights of a model are from."""
    cards = ask(proxy.url, "/v1/models", method="GET").json()["data"]
    return (model, str(path)) in {(card["id"], card.get("root")) for card in cards}


def unload(adapters: Adapters, talk: Talk, proxy: Served, checks: Checks) -> None:
    """One that is gone: the engine's own words once, then the proxy's."""
    checks.equal("unloading", adapters.unload(LATER).status, 200)
    first, told = talk.ask(proxy.url, LATER), message(proxy, LATER)
    checks.equal("the next request", (first.status, LATER in first.json()["error"]["message"]), (404, True))
    checks.equal("in Anthropic's dialect", (told.status, told.json()["error"]["type"]), (404, "not_found_error"))
    gone = eventually(lambda: LATER not in listed(proxy), within_s=_LISTED_WITHIN_S, every_s=0.2)
    checks.holds("it is listed no more", gone, is_so=gone)
    checks.equal("the request after that", talk.ask(proxy.url, LATER).json()["error"]["code"], "refused_not_found")


def play(programs: Programs, install: Path, folder: Path) -> bool:
    """The whole story."""
    checks = Checks()
    first, second = make_adapters(install, folder)
    engine = start_vllm(
        programs,
        install,
        ["--enable-lora", "--max-loras", "2", "--lora-modules", f"{AT_START}={first}"],
        size=SMALL,
        environment={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
    )
    adapters = Adapters(first, second, engine)
    simulated = start_simulated(programs, BASE, speed=_SIMULATED_SPEED)
    backends = [{"url": engine.url, "name": "engine"}, {"url": simulated.url, "name": "simulated"}]
    alone = start_proxy_before(programs, "tidegate", backends[:1], settings=_MODELS_INTERVAL)
    serve(alone, start_proxy_before(programs, "both", backends), checks)
    refuse(alone, checks)
    keep_apart(alone, checks)
    say("an adapter comes and goes ...")
    talk = load_later(adapters, alone, checks)
    replace(adapters, talk, alone, checks)
    unload(adapters, talk, alone, checks)
    return tell_verdicts(checks.found)


def main(install: Path) -> int:
    """Run it; keep the logs when something failed."""
    return run_trial("test-lora", lambda programs, folder: play(programs, install, folder))


if __name__ == "__main__":
    clean_up_on_sigterm()
    sys.exit(main(Path(sys.argv[1])))
