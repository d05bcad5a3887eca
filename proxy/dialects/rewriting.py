"""The changes to a request that settings ask for: another model name, a smaller limit, a count of tokens and the like.

Pure.

Without such a setting there is no rewriter, and bodies pass untouched. What is changed is one value, or one field more;
every other byte stays as it came.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from proxy.core.requests import Route
from proxy.dialects.attribution import without_attribution
from proxy.dialects.body_fields import with_member, with_value
from proxy.dialects.model_names import ModelNames
from proxy.dialects.prompts import facts_of
from proxy.dialects.request_body import BodyFacts, multipart_model_span

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_USAGE_ROUTES: Final = frozenset({"chat_completions", "completions"})
"""Whose streams say what they took only when they are asked to; the other two always do."""
_ASK: Final = b'"stream_options":{"include_usage":true}'
_LEAST_BYTES_PER_TOKEN: Final = 1.5
_BYTES_PER_TOKEN: Final = 3.7
"""Agents' prompts have 3.95 to 4.11: rather a little too little room for the answer than too much."""
_TEMPLATE_TOKENS: Final = 64
_LEAST_ROOM_TOKENS: Final = 256
"""With less room than this the engine's error helps more than an answer of a few words."""


class Rewritten(NamedTuple):
    """A request as it is sent on.

    Attributes:
        receipts: headers for the answer that say what was changed.
        hides_usage: the client did not ask for the usage event: it is to be taken out of its stream.
    """

    body: bytes
    facts: BodyFacts
    receipts: tuple[tuple[bytes, bytes], ...] = ()
    hides_usage: bool = False


class Rewriter:
    """Makes the configured changes.

    Args:
        names: aliases of models, or None.
        context_tokens: a model's context, None where it is not known; None turns the clamp off.
        strips_attribution: whether Claude Code's attribution line is taken out.
        asks_usage: asked for each stream whether the engine is to count its tokens; None for never.
    """

    def __init__(
        self,
        *,
        names: ModelNames | None = None,
        context_tokens: Callable[[str], int | None] | None = None,
        asks_usage: Callable[[], bool] | None = None,
        strips_attribution: bool = False,
    ) -> None:
        self._names = names
        self._context_tokens = context_tokens
        self._asks_usage = asks_usage
        self._strips_attribution = strips_attribution

    def rewrite(self, route: Route, body: bytes, facts: BodyFacts) -> Rewritten:
        """A request as it is to be sent on; unchanged where no setting applies to it."""
        done = Rewritten(body, facts)
        if self._names is not None and facts.model is not None:
            done = _renamed(route, done, facts.model, self._names.served_name(facts.model))
        if self._context_tokens is not None and route.generates and done.facts.model is not None:
            done = _clamped(done, self._context_tokens(done.facts.model))
        if self._strips_attribution and not route.is_multipart:
            done = done._replace(body=without_attribution(done.body, done.facts.fields))
        if self._asks_usage is not None and _may_ask(route, done.facts) and self._asks_usage():
            done = done._replace(body=with_member(done.body, _ASK), hides_usage=True)
        return done


def _renamed(route: Route, request: Rewritten, asked: str, served: str) -> Rewritten:
    if served == asked:
        return request
    if route.is_multipart:
        start, end = multipart_model_span(request.body)
        body: bytes | None = request.body[:start] + served.encode() + request.body[end:]
    else:
        body = with_value(request.body, "model", asked, served)
    if body is None:
        return request
    receipt = (b"x-tidegate-model", served.encode("ascii", "backslashreplace"))
    facts = replace(request.facts, model=served, fields={**request.facts.fields, "model": served})
    return request._replace(body=body, facts=facts, receipts=(*request.receipts, receipt))


def _clamped(request: Rewritten, context: int | None) -> Rewritten:
    fields = request.facts.fields
    name = next((name for name in _LIMITS if name in fields), None)
    asked = fields[name] if name is not None else None
    if context is None or name is None or not isinstance(asked, int) or isinstance(asked, bool):
        return request
    if asked + len(request.body) / _LEAST_BYTES_PER_TOKEN < context:
        return request  # it fits, whatever the text is
    try:
        prompt = facts_of(fields)
    except (TypeError, ValueError, RecursionError):
        return request
    room = context - int(prompt.text_bytes / _BYTES_PER_TOKEN) - prompt.extra_tokens - _TEMPLATE_TOKENS
    if asked <= room or room < _LEAST_ROOM_TOKENS:
        return request
    body = with_value(request.body, name, asked, room)
    if body is None:
        return request
    receipt = (b"x-tidegate-max-tokens", b"%d" % room)
    facts = replace(request.facts, fields={**fields, name: room})
    return request._replace(body=body, facts=facts, receipts=(*request.receipts, receipt))


def _may_ask(route: Route, facts: BodyFacts) -> bool:
    """Whether it is a stream that would not be counted; what the client says about that itself counts."""
    return facts.is_stream and route.name in _USAGE_ROUTES and "stream_options" not in facts.fields
