"""Tells a client in words that it acts on that a prompt does not fit the engine's context. Pure.

Claude Code makes its conversation shorter, or its answer's limit lower, only on Anthropic's own wording; engines say
the same in theirs. The numbers are kept, and the engine's own text follows.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_NUMBER: Final = r"(\d{1,12})"

# Two numbers are in every form: the context, and what is in its way.
_CONTEXT: Final = re.compile(
    rf"maximum context length (?:is|of) {_NUMBER}|context length \({_NUMBER} tokens\)|max_model_len={_NUMBER}"
    rf"|maximum model length of {_NUMBER}|context size \({_NUMBER} tokens\)"
)
_INPUT: Final = re.compile(
    rf"(?P<least>at least )?{_NUMBER} input tokens|{_NUMBER} in the messages|{_NUMBER} tokens from the input"
    rf"|prompt \(length {_NUMBER}\)|input \({_NUMBER} tokens\)|prompt contains (?P<least2>at least )?{_NUMBER} tokens"
    rf"|resulted in {_NUMBER} tokens|request \({_NUMBER} tokens\)|\({_NUMBER} input tokens"
)
_OUTPUT: Final = re.compile(
    rf"requested {_NUMBER} output tokens|too large: {_NUMBER}|{_NUMBER} in the completion"
    rf"|{_NUMBER} tokens for the completion|max(?:_completion)?_tokens={_NUMBER} cannot|and {_NUMBER} max_tokens"
)
_TOTAL: Final = re.compile(rf"you requested {_NUMBER} tokens")


class Overflow(NamedTuple):
    """What an engine said about a prompt that does not fit, in tokens.

    Attributes:
        input_tokens: the prompt, or None where the engine did not count it.
        is_least: the engine stopped counting there, so the prompt may be longer.
        output_tokens: what was asked for besides, or None.
    """

    context_tokens: int
    input_tokens: int | None
    is_least: bool
    output_tokens: int | None


def overflow_of(message: str) -> Overflow | None:
    """What an engine's error says about its context, in any of the wordings that vLLM and SGLang have used.

    Returns:
        None when the message is about something else.
    """
    context = _first(_CONTEXT, message)
    if context is None:
        return None
    found = _INPUT.search(message)
    input_tokens = _number(found) if found else None
    output_tokens = _first(_OUTPUT, message)
    if input_tokens is None and output_tokens is None:
        input_tokens = _first(_TOTAL, message)
        if input_tokens is None:
            return None
    is_least = found is not None and bool(found["least"] or found["least2"])
    return Overflow(context, input_tokens, is_least, output_tokens)


def anthropic_words(message: str, estimate: Callable[[], int]) -> str | None:
    """An engine's error about its context as Anthropic would word it, with the engine's own text after it.

    Args:
        message: the engine's error.
        estimate: our own guess of the prompt's tokens, rather too many than too few. Asked where the engine gave none,
            or stopped counting: with too small a number a client would lower its limit a little, many times over.

    Returns:
        None when the message is about something else.
    """
    overflow = overflow_of(message)
    if overflow is None:
        return None
    context = overflow.context_tokens
    input_tokens = overflow.input_tokens or 0
    if (overflow.is_least or not input_tokens) and input_tokens <= context:
        input_tokens = max(input_tokens, estimate())
    if overflow.output_tokens and input_tokens <= context:
        output_tokens = max(overflow.output_tokens, context - input_tokens + 1)  # the sum has to exceed the limit
        worded = f"input length and `max_tokens` exceed context limit: {input_tokens} + {output_tokens} > {context}"
    else:
        worded = f"prompt is too long: {max(input_tokens, context + 1)} tokens > {context} maximum"
    return f"{worded} (the engine said: {message})"


def _first(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return _number(found) if found else None


def _number(found: re.Match[str]) -> int:
    groups: Sequence[str | None] = found.groups()
    return next(int(group) for group in groups if group is not None and group.isdigit())
