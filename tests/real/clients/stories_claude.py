"""What only Claude Code does: compaction, sub-agents, and a stream that breaks by the setting of its fallback."""

from functools import partial
from typing import Final

from tests.real.clients.commands import Cli
from tests.real.clients.overflow import input_overflow, output_overflow
from tests.real.clients.replies import Asked, Cut, Reply, Text, ToolCall, ToolCalls
from tests.real.clients.scenario import (
    ANSWER,
    SUMMARY,
    SUMMARY_WORDS,
    Played,
    Scenario,
    asked_times,
    ended_well,
    few_words,
    main_thread,
    no_error_shown,
    turns_of,
    verdict,
)
from tests.real.clients.shapes import MESSAGES
from tests.real.clients.stage import Printed, Stage

_LIMIT_S: Final = 90.0
_AGENTS: Final = 4
_AGENT_HEADER: Final = "x-claude-code-agent-id"
_SESSION_HEADER: Final = "x-claude-code-session-id"
_REPORT: Final = "Report-of-an-agent"


def scenarios(cli: Cli) -> list[Scenario]:
    """All of them."""
    make = partial(Scenario, cli.name, cli.version)
    return [
        make("a stream cut in the middle, with its fallback switched off", partial(_cut_without_fallback, cli)),
        make("a prompt longer than the context", partial(_too_long, cli)),
        make("a prompt that leaves too little room for max_tokens", partial(_too_much_asked, cli)),
        make(f"a fan-out to {_AGENTS} sub-agents", partial(_fan_out, cli)),
    ]


async def _cut_without_fallback(cli: Cli, stage: Stage) -> Played:
    """It does not ask again then; that it says why, in the proxy's words, is all that can be had."""
    stage.engine.tell(main_thread(cli, stage, Cut("These words are the beginning of no whole answer"), Text(ANSWER)))
    printed = await cli.ask(stage, "Say hello.", _LIMIT_S, {"CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1"})
    said = _result(printed)
    return Played(
        [
            verdict("it ends by itself, and says that it failed", printed.status == 1, f"status {printed.status}"),
            verdict("it says why", "The answer broke off" in said, said),
            asked_times(turns_of(cli, stage), 1),
        ],
        said=few_words(said),
    )


async def _too_long(cli: Cli, stage: Stage) -> Played:
    """Some tool calls, so that there is something to compact, and then the engine's own refusal."""
    read = ToolCalls((cli.read_note(stage),))
    main = main_thread(cli, stage, read, read, read, input_overflow(MESSAGES), Text(ANSWER))

    def story(asked: Asked) -> Reply:
        if asked.says(cli.summary_words):
            return SUMMARY
        return main(asked)

    stage.engine.tell(story)
    printed = await cli.ask(stage, "Read the note again and again.", _LIMIT_S)
    asked = stage.engine.asked
    compactions = [one for one in asked if one.says(cli.summary_words)]
    goes_on = bool(asked) and asked[-1].says(SUMMARY_WORDS) and not asked[-1].says(cli.summary_words)
    statuses = [event.get("compact_result") for event in printed.events if event.get("subtype") == "status"]
    return Played(
        [
            verdict("it asks for a summary, once", len(compactions) == 1, len(compactions)),
            verdict("it goes on from the summary", goes_on, few_words(_result(printed))),
            *ended_well(printed),
            no_error_shown(cli, printed),
        ],
        said=few_words(f"compacting: {[status for status in statuses if status]}; {_result(printed)}"),
    )


async def _too_much_asked(cli: Cli, stage: Stage) -> Played:
    """The engine counts four and a half bytes to a token, in a context that is too small for prompt and answer."""
    main = main_thread(cli, stage, Text(ANSWER))
    context = 40_000

    def story(asked: Asked) -> Reply:
        limit = int(asked.body.get("max_tokens", 0))
        fits = len(asked.request.body) / 4.5 + limit <= context
        return main(asked) if fits else output_overflow(MESSAGES, context, limit)

    stage.engine.tell(story)
    printed = await cli.ask(stage, "Say hello.", _LIMIT_S)
    limits = [int(one.body.get("max_tokens", 0)) for one in stage.engine.asked]
    lower = 1 < len(limits) < 4 and limits[-1] < limits[0]
    return Played(
        [
            verdict("it asks again for less, and not many times", lower, f"max_tokens {limits}"),
            *ended_well(printed),
            no_error_shown(cli, printed),
        ],
        said=few_words(_result(printed)),
    )


async def _fan_out(cli: Cli, stage: Stage) -> Played:
    """The engine wants several agents at once; each answers, and the main thread gets all of their reports."""
    calls = tuple(
        ToolCall(
            "Agent",
            {"description": f"part {number}", "prompt": f"Do part {number}.", "subagent_type": "general-purpose"},
        )
        for number in range(_AGENTS)
    )

    def story(asked: Asked) -> Reply:
        if asked.header(_AGENT_HEADER):
            return Text(_REPORT)
        return Text(ANSWER) if asked.says(_REPORT) else ToolCalls(calls)

    stage.engine.tell(story)
    printed = await cli.ask(stage, "Have all parts done.", _LIMIT_S)
    asked = stage.engine.asked
    agents = [agent for one in asked if (agent := one.header(_AGENT_HEADER))]
    sessions = {one.header(_SESSION_HEADER) for one in asked}
    reports = asked[-1].request.body.count(_REPORT.encode()) if asked else 0
    outcomes = await stage.outcomes(len(asked))
    return Played(
        [
            *ended_well(printed),
            verdict(f"{_AGENTS} agents ask, each by its own id", len(set(agents)) == len(agents) == _AGENTS, agents),
            verdict("all in one session", len(sessions) == 1, len(sessions)),
            verdict("the main thread has every report", reports == _AGENTS, reports),
            verdict("the proxy calls all of it completed", set(outcomes) == {"completed"}, outcomes),
            no_error_shown(cli, printed),
        ],
        said=few_words(_result(printed)),
    )


def _result(printed: Printed) -> str:
    """Its last word."""
    results = [str(event["result"]) for event in printed.events if event.get("type") == "result"]
    return results[-1] if results else printed.output[-200:]
