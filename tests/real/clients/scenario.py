"""What a scenario is, and the verdicts that many of them share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.real.clients.commands import Cli
from tests.real.clients.engine import CONTEXT_TOKENS
from tests.real.clients.replies import Asked, Reply, Story, Text, in_turn
from tests.real.clients.stage import Printed, Stage
from tests.real.verdicts import Verdict

ANSWER: Final = "All-is-well-now"
"""One word, so that no client breaks it over two lines."""
NEARLY_FULL_TOKENS: Final = int(0.97 * CONTEXT_TOKENS)
SUMMARY_WORDS: Final = "Summary-of-all-before"
SUMMARY: Final = Text(
    f"<analysis>All.</analysis><summary>{SUMMARY_WORDS}</summary><state_snapshot>{SUMMARY_WORDS}</state_snapshot>",
    prompt_tokens=NEARLY_FULL_TOKENS,
)
"""In the tags that Claude Code and Qwen Code look for; the others take it as it is."""
_TOLD_HEADERS: Final = (
    "user-agent", "x-app", "originator", "x-stainless-timeout", "x-stainless-retry-count", "x-stainless-lang",
    "x-client-request-id", "anthropic-beta", "accept", "accept-encoding",
)  # fmt: skip


@dataclass(frozen=True)
class Played:
    """What came of one scenario.

    Attributes:
        said: what the client printed, in a few words.
        sent: what it sent, where that is told.
    """

    verdicts: Sequence[Verdict]
    said: str
    sent: Sequence[str] = ()


@dataclass(frozen=True)
class Scenario:
    """One scenario of one client."""

    client: str
    version: str
    name: str
    play: Callable[[Stage], Awaitable[Played]]

    @property
    def title(self) -> str:
        """Both names."""
        return f"{self.client}: {self.name}"


def verdict(what: str, holds: object, seen: object) -> Verdict:
    """One thing that must hold."""
    return Verdict(what, bool(holds), str(seen))


def main_thread(cli: Cli, stage: Stage, *replies: Reply) -> Story:
    """The replies in turn for the agent's own requests; a word for what clients ask besides, such as a title."""
    tool = cli.read_note(stage).name
    main = in_turn(*replies)
    return lambda asked: main(asked) if tool in asked.tool_names else Text("Besides")


def turns_of(cli: Cli, stage: Stage) -> list[Asked]:
    """The requests of the turn itself: not titles, and nothing that a client asks when the answer is there."""
    tool = cli.read_note(stage).name
    return [asked for asked in stage.engine.asked if tool in asked.tool_names and not asked.says(ANSWER)]


def ended_well(printed: Printed) -> list[Verdict]:
    """Its turn ended with the answer."""
    return [
        verdict(
            "it ends by itself, status 0", printed.status == 0, f"status {printed.status}, {printed.seconds:.1f} s"
        ),
        verdict("it prints the answer", ANSWER in printed.output, "there" if ANSWER in printed.output else "missing"),
    ]


def asked_times(turns: Sequence[Asked], count: int) -> Verdict:
    """How often the engine was asked."""
    gaps = ", ".join(f"+{turn.at - turns[0].at:.1f} s" for turn in turns[1:])
    return verdict(f"the engine is asked {count} times", len(turns) == count, f"{len(turns)} ({gaps})")


def no_error_shown(cli: Cli, printed: Printed) -> Verdict:
    """Its user sees nothing of any trouble."""
    shown = cli.shown_errors(printed)
    return verdict("it shows no error", not shown, shown or "none")


def few_words(text: str, limit: int = 160) -> str:
    """Text on one short line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "..."


def sent(asked: Asked) -> str:
    """What a client sent besides its prompt, on three lines."""
    headers = [f"{name}: {few_words(value, 90)}" for name in _TOLD_HEADERS if (value := asked.header(name))]
    fields = ", ".join(sorted(asked.body))
    size = len(asked.request.body)
    return f"{asked.request.line} ({size} bytes, {len(asked.tool_names)} tools)\n{'; '.join(headers)}\nfields: {fields}"
