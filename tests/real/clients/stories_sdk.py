"""The openai and anthropic SDKs for TypeScript: what they retry, when they come back, and as what they throw."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.real.clients.commands import HERE, node, version_of
from tests.real.clients.engine import MODEL
from tests.real.clients.replies import Asked, Cut, Refused, Reply, Silent, Text, in_turn
from tests.real.clients.scenario import ANSWER, Played, Scenario, few_words, sent, verdict
from tests.real.clients.stage import Stage
from tests.real.verdicts import Verdict

_LIMIT_S: Final = 60.0
_SILENT_S: Final = 20.0


@dataclass(frozen=True)
class Case:
    """One call and what must come of it.

    Attributes:
        replies: the engine's, one a request.
        asked: how often the engine must have been asked.
        throws: any of these classes of error, or none of them for the answer.
        gap_s: how long after the first request the second one may come.
    """

    name: str
    replies: tuple[Reply, ...]
    asked: int = 1
    throws: tuple[str, ...] = ()
    gap_s: tuple[float, float] = (0.0, 8.0)
    is_streamed_only: bool = False


_FULL: Final = "The engine is full."
_UNAVAILABLE: Final = ("InternalServerError", "ServiceUnavailableError")
"""The names that the two SDKs have for a 503."""
_LIMITED: Final = ("RateLimitError",)
"""And for a 429. On the Responses API the proxy may say 503 instead, which is what Codex takes for temporary."""
_CASES: Final = (
    Case("an answer", (Text(ANSWER),)),
    Case("429 with Retry-After, then an answer", (Refused(429, _FULL, "2"), Text(ANSWER)), 2, gap_s=(2.0, 8.0)),
    Case("503 with Retry-After, then an answer", (Refused(503, _FULL, "2"), Text(ANSWER)), 2, gap_s=(2.0, 8.0)),
    Case("500, then an answer", (Refused(500), Text(ANSWER)), 2, gap_s=(0.3, 1.5)),
    Case("429 again and again", (Refused(429, _FULL, "1"),), 3, _LIMITED, gap_s=(1.0, 8.0)),
    Case("503 again and again", (Refused(503, _FULL, "1"),), 3, _UNAVAILABLE, gap_s=(1.0, 8.0)),
    Case("429 with x-should-retry: false", (Refused(429, _FULL, should_retry="false"),), throws=_LIMITED),
    Case("400", (Refused(400),), throws=("BadRequestError",)),
    Case("404", (Refused(404),), throws=("NotFoundError",)),
    Case(f"{_SILENT_S:.0f} s of silent prefill", (Silent(_SILENT_S, Text(ANSWER)),), is_streamed_only=True),
    Case("a stream cut in the middle", (Cut("Words of no whole answer"),), throws=("APIError",), is_streamed_only=True),
)
_CALLS: Final = (
    ("openai", "openai_sdk.mjs", "chat"),
    ("openai", "openai_sdk.mjs", "responses"),
    ("@anthropic-ai/sdk", "anthropic_sdk.mjs", "messages"),
)


def scenarios() -> list[Scenario]:
    """Every case, streamed and not, on each route that an SDK has."""
    made = []
    for package, script, route in _CALLS:
        client = f"{package.strip('@').removesuffix('-ai/sdk')} for TypeScript"
        for mode in ("stream", "whole"):
            play = partial(_play, [node(), str(HERE / script), route, mode], route, mode)
            made.append(Scenario(client, version_of(package), f"{route}, {mode}", play))
    return made


async def _play(command: Sequence[str], route: str, mode: str, stage: Stage) -> Played:
    verdicts: list[Verdict] = []
    threw: list[str] = []
    for case in _CASES:
        if mode == "stream" or not case.is_streamed_only:
            told = await _call(command, case, stage)
            verdicts += _judge(case, route, told, stage.engine.asked)
            threw.append(str(told.get("error") or "answer"))
    return Played(verdicts, said=few_words(", ".join(threw)), sent=[sent(stage.engine.asked[0])])


async def _call(command: Sequence[str], case: Case, stage: Stage) -> dict[str, Any]:
    """The line that the script printed."""
    stage.engine.tell(in_turn(*case.replies))
    printed = await stage.run(command, {"BASE_URL": stage.proxy.url, "MODEL": MODEL}, _LIMIT_S)
    return printed.events[-1] if printed.events else {"error": few_words(printed.output)}


def _judge(case: Case, route: str, told: Mapping[str, Any], asked: Sequence[Asked]) -> Iterator[Verdict]:
    times = len(asked)
    yield verdict(f"{case.name}: the engine is asked {case.asked} times", times == case.asked, times)
    if not case.throws:
        yield verdict(f"{case.name}: it gives the answer", str(told.get("text", "")).strip() == ANSWER, told)
    else:
        may_throw = case.throws + _UNAVAILABLE if route == "responses" and case.throws == _LIMITED else case.throws
        holds = told.get("error") in may_throw
        yield verdict(f"{case.name}: it throws {' or '.join(may_throw)}", holds, few_words(str(told)))
        request_id = told.get("requestID")
        yield verdict(f"{case.name}: the error has a request id", request_id, request_id)
    if times > 1:
        (least_s, most_s), gap_s = case.gap_s, asked[1].at - asked[0].at
        what = f"{case.name}: it comes back after {least_s} to {most_s} s"
        yield verdict(what, least_s <= gap_s <= most_s, f"{gap_s:.2f} s")
