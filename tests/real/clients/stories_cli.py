"""What every command-line client is put through: a turn, a tool, a full engine, a broken stream, a long prefill."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from proxy.dialects.session_identity import named_session
from tests.real.clients.commands import Cli
from tests.real.clients.replies import Asked, Cut, Refused, Silent, Text, ToolCalls
from tests.real.clients.scenario import (
    ANSWER,
    NEARLY_FULL_TOKENS,
    SUMMARY,
    SUMMARY_WORDS,
    Played,
    Scenario,
    asked_times,
    ended_well,
    few_words,
    main_thread,
    no_error_shown,
    sent,
    turns_of,
    verdict,
)
from tests.real.clients.stage import NOTE_WORDS, Stage
from tests.real.verdicts import Verdict

_RETRY_AFTER_S: Final = 2
_LONGEST_RETRY_S: Final = 12.0
_LIMIT_S: Final = 90.0
_BROKEN_WORDS: Final = "These words are the beginning of an answer that will never be whole because the engine dies"


def scenarios(cli: Cli, statuses: Sequence[int], silent_s: float) -> list[Scenario]:
    """All of them for one client.

    Args:
        cli: the client.
        statuses: with which an engine says that it is full.
        silent_s: how long the prefill takes.
    """
    make = partial(Scenario, cli.name, cli.version)
    return [
        make("one plain turn", partial(_plain, cli)),
        make("one tool turn", partial(_tool, cli)),
        *(make(f"{status} with Retry-After, then an answer", partial(_overload, cli, status)) for status in statuses),
        make("a stream cut in the middle", partial(_cut, cli)),
        make(f"{silent_s:.0f} s of silent prefill", partial(_silent, cli, silent_s)),
        make("a context that is nearly full", partial(_nearly_full, cli)),
    ]


async def _plain(cli: Cli, stage: Stage) -> Played:
    stage.engine.tell(main_thread(cli, stage, Text(ANSWER)))
    printed = await cli.ask(stage, "Say hello.", _LIMIT_S)
    turns = turns_of(cli, stage)
    outcomes = await stage.outcomes(len(stage.engine.asked))
    return Played(
        [
            *ended_well(printed),
            asked_times(turns, 1),
            no_error_shown(cli, printed),
            verdict("the proxy knows its session", *_known_session(cli, stage.engine.asked)),
            verdict("the proxy calls all of it completed", set(outcomes) == {"completed"}, outcomes),
        ],
        said=ANSWER if ANSWER in printed.output else few_words(printed.output),
        sent=[sent(asked) for asked in stage.engine.asked],
    )


def _known_session(cli: Cli, asked: Sequence[Asked]) -> tuple[bool, str]:
    """Whether each request names one and the same session, as the header of this client gives it."""
    by_header = {one.header(cli.session_header) for one in asked}
    known = set()
    for one in asked:
        lower = {name.lower(): value for name, value in one.request.headers}
        named = named_session(lower, one.body)
        known.add(named[0] if named else None)
    is_one = len(by_header) == 1 and None not in by_header
    return is_one and known == by_header, f"{cli.session_header}: {by_header}; known as {known}"


async def _tool(cli: Cli, stage: Stage) -> Played:
    stage.engine.tell(main_thread(cli, stage, ToolCalls((cli.read_note(stage),)), Text(ANSWER)))
    printed = await cli.ask(stage, "Read the note.", _LIMIT_S)
    turns = turns_of(cli, stage)
    brought = bool(turns) and turns[-1].says(NOTE_WORDS)
    return Played(
        [
            *ended_well(printed),
            asked_times(turns, 2),
            verdict("the second request brings what the tool read", brought, "there" if brought else "missing"),
            no_error_shown(cli, printed),
        ],
        said=ANSWER if ANSWER in printed.output else few_words(printed.output),
    )


async def _overload(cli: Cli, status: int, stage: Stage) -> Played:
    refused = Refused(status, "The engine is full.", retry_after=str(_RETRY_AFTER_S))
    stage.engine.tell(main_thread(cli, stage, refused, Text(ANSWER)))
    printed = await cli.ask(stage, "Say hello.", _LIMIT_S)
    turns = turns_of(cli, stage)
    shown = cli.shown_errors(printed)
    verdicts = [*ended_well(printed), asked_times(turns, 2)]
    verdicts.append(_came_back(turns))
    retries = [event for event in printed.events if event.get("subtype") == "api_retry"]
    if cli.name == "claude-code":
        verdicts.append(
            verdict("one wait is to be seen", len(retries) == 1, [one["retry_delay_ms"] for one in retries])
        )
    verdicts.append(no_error_shown(cli, printed))
    waits = [f"api_retry, {one['retry_delay_ms']} ms, {one['error']}" for one in retries]
    return Played(verdicts, said=few_words("; ".join([*waits, *shown, ANSWER if ANSWER in printed.output else "-"])))


def _came_back(turns: Sequence[Asked]) -> Verdict:
    gap_s = turns[1].at - turns[0].at if len(turns) > 1 else 0.0
    holds = _RETRY_AFTER_S <= gap_s < _LONGEST_RETRY_S
    return verdict(f"it comes back after Retry-After: {_RETRY_AFTER_S}", holds, f"{gap_s:.2f} s")


async def _cut(cli: Cli, stage: Stage) -> Played:
    stage.engine.tell(main_thread(cli, stage, Cut(_BROKEN_WORDS), Text(ANSWER)))
    printed = await cli.ask(stage, "Say hello.", _LIMIT_S)
    turns = turns_of(cli, stage)
    outcomes = await stage.outcomes(len(stage.engine.asked))
    shown = cli.shown_errors(printed)
    return Played(
        [
            *ended_well(printed),
            asked_times(turns, 2),
            verdict("the proxy calls the first one broken", "upstream_error_reset" in outcomes, outcomes),
        ],
        said=few_words("; ".join([*shown, ANSWER if ANSWER in printed.output else printed.output])),
        sent=[f"the second time stream={turn.is_stream}" for turn in turns[1:]],
    )


async def _silent(cli: Cli, silent_s: float, stage: Stage) -> Played:
    stage.engine.tell(main_thread(cli, stage, Silent(silent_s, Text(ANSWER))))
    printed = await cli.ask(stage, "Say hello.", silent_s + _LIMIT_S)
    return Played(
        [*ended_well(printed), asked_times(turns_of(cli, stage), 1), no_error_shown(cli, printed)],
        said=ANSWER if ANSWER in printed.output else few_words(printed.output),
    )


async def _nearly_full(cli: Cli, stage: Stage) -> Played:
    """The engine's usage says so, and the client knows from its settings how much there is: it compacts in time."""
    read = (cli.read_note(stage),)
    nearly = ToolCalls(read, prompt_tokens=NEARLY_FULL_TOKENS)
    main = main_thread(cli, stage, ToolCalls(read), nearly, Text(ANSWER))
    stage.engine.tell(lambda asked: SUMMARY if asked.says(cli.summary_words) else main(asked))
    printed = await cli.ask(stage, "Read the note twice.", _LIMIT_S)
    asked = stage.engine.asked
    summaries = [one for one in asked if one.says(cli.summary_words)]
    goes_on = any(one.says(SUMMARY_WORDS) and not one.says(cli.summary_words) for one in asked)
    return Played(
        [
            verdict("it asks for a summary, once", len(summaries) == 1, len(summaries)),
            verdict("it goes on from the summary", goes_on, [len(one.request.body) for one in asked]),
            *ended_well(printed),
            no_error_shown(cli, printed),
        ],
        said=ANSWER if ANSWER in printed.output else few_words(printed.output),
        sent=[sent(one) for one in summaries],
    )
