"""A prompt longer than the context, for the clients that are told so in the engine's own words."""

from functools import partial
from typing import Final

from tests.real.clients.commands import Cli
from tests.real.clients.overflow import input_overflow
from tests.real.clients.replies import Asked, Reply, Text, ToolCalls
from tests.real.clients.scenario import (
    ANSWER,
    Played,
    Scenario,
    ended_well,
    few_words,
    main_thread,
    verdict,
)
from tests.real.clients.stage import Stage

_LIMIT_S: Final = 90.0
_WORDS: Final = "maximum context length is"
_TURNS: Final = 4


def scenarios(codex: Cli, opencode: Cli, qwen_code: Cli) -> list[Scenario]:
    """One for each."""
    name = "a prompt longer than the context"
    return [
        Scenario(codex.name, codex.version, name, partial(_is_told, codex)),
        Scenario(opencode.name, opencode.version, name, partial(_compacts, opencode)),
        Scenario(qwen_code.name, qwen_code.version, name, partial(_is_told, qwen_code)),
    ]


def _tell(cli: Cli, stage: Stage) -> None:
    """Some tool calls, then one refusal, then an answer for whoever asks again."""
    read = ToolCalls((cli.read_note(stage),))
    turns = [read] * (_TURNS - 1)
    main = main_thread(cli, stage, *turns, Text(ANSWER))
    refusals = [_TURNS]

    def story(asked: Asked) -> Reply:
        if asked.tool_names:
            refusals[0] -= 1
            if refusals[0] == 0:
                return input_overflow(asked.path)
        return main(asked)

    stage.engine.tell(story)


async def _is_told(cli: Cli, stage: Stage) -> Played:
    """It does not compact on the words of any engine; its user reads them."""
    _tell(cli, stage)
    printed = await cli.ask(stage, "Read the note again and again.", _LIMIT_S)
    shown = cli.shown_errors(printed)
    return Played(
        [
            verdict("it ends by itself, and says that it failed", printed.status == 1, f"status {printed.status}"),
            verdict("it says why, in the engine's words", any(_WORDS in line for line in shown), shown),
        ],
        said=few_words(" ".join(shown)),
    )


async def _compacts(cli: Cli, stage: Stage) -> Played:
    """It knows vLLM's words, asks for a summary and goes on from it."""
    _tell(cli, stage)
    printed = await cli.ask(stage, "Read the note again and again.", _LIMIT_S)
    asked = stage.engine.asked
    sizes = [len(one.request.body) for one in asked if one.tool_names]
    return Played(
        [
            verdict("it goes on from something shorter", len(sizes) > _TURNS and sizes[-1] < sizes[_TURNS - 1], sizes),
            ended_well(printed)[1],
        ],
        said=few_words(f"status {printed.status}; " + "; ".join(cli.shown_errors(printed))),
    )
