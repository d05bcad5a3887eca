"""What a client asks for, read from a request's JSON, with one reader a route.

Called by the HTTP face; raises `Fault` in vLLM's words. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.sim import faults
from proxy.sim.chat_template import last_user_text, messages_to_chat, render_chat, tools_to_chat
from proxy.sim.checks import (
    Body,
    check_messages,
    check_sampling,
    message_list,
    not_empty,
    required_max_tokens,
    whole_number,
)
from proxy.sim.faults import Fault
from proxy.sim.text import count_tokens, encode, encode_ids


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, dialect taken away.

    Attributes:
        encoded: the prompt.
        max_tokens: tokens that may be generated, already cut to what the context leaves.
        tool: the chat tool that the answer shall call, or None.
        is_tool_named: the client named that very tool, which changes the finish reason that vLLM reports.
        include_usage: a stream ends with an event of usage.
        continuous_usage: every event of a stream carries usage.
        echo: the answer begins with the prompt's text, given here.
    """

    model: str
    encoded: bytes
    max_tokens: int
    is_stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    tool: Mapping[str, Any] | None = None
    is_tool_named: bool = False
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine serves: model names (the first is its own), context and the price of an image in tokens."""

    models: Sequence[str]
    context_tokens: int
    image_tokens: int

    def model_of(self, body: Body) -> str:
        """The model a request is for; unnamed means the first."""
        asked = body.get("model")
        if not asked:
            return self.models[0]
        if asked not in self.models:
            raise faults.unknown_model(str(asked), self.models)
        return str(asked)

    def room_for(self, encoded: bytes, asked: int | None, parameter: str, *, is_exact: bool = False) -> int:
        """How many tokens may be generated after this prompt."""
        prompt_tokens = count_tokens(encoded)
        if prompt_tokens > self.context_tokens:
            raise faults.prompt_too_long(self.context_tokens, prompt_tokens, is_exact=is_exact)
        if asked is not None and asked > self.context_tokens:
            message = (
                f"{parameter}={asked} cannot be greater than max_model_len={self.context_tokens}. "
                "Please request fewer output tokens."
            )
            raise faults.bad_parameter(message, parameter, asked)
        room = self.context_tokens - prompt_tokens
        allowed = room if asked is None else min(asked, room)
        if allowed < 1:
            raise faults.bad_parameter(f"max_tokens must be at least 1, got {allowed}.", "max_tokens", allowed)
        return allowed


def read_chat(body: Body, limits: Limits) -> Ask:
    """`/v1/chat/completions`."""
    messages = message_list(body)
    model = limits.model_of(body)
    encoded = render_chat(not_empty(messages), body.get("tools"), limits.image_tokens)
    parameter = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    asked = whole_number(body, parameter)
    check_sampling(body, asked, parameter)
    tool, is_named = _chosen_tool(body, messages)
    return Ask(
        model=model,
        encoded=encoded,
        max_tokens=limits.room_for(encoded, asked, parameter),
        tool=tool,
        is_tool_named=is_named,
        **_stream_options(body),
        **_lengths(body),
    )


def read_completion(body: Body, limits: Limits) -> Ask:
    """`/v1/completions`, with one prompt, of text or of token numbers."""
    model = limits.model_of(body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not prompt:
        raise faults.bad_parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    is_text = isinstance(prompt, str)
    if not is_text and not all(isinstance(number, int) for number in prompt):
        raise Fault("the simulated engine takes one prompt a request", param="prompt")
    asked = whole_number(body, "max_tokens")
    check_sampling(body, asked, "max_tokens")
    encoded = encode(prompt) if is_text else encode_ids(prompt)
    # The completions API's own default.
    room = limits.room_for(encoded, 16 if asked is None else asked, "max_tokens", is_exact=not is_text)
    echo = prompt if is_text and body.get("echo") else ""
    return Ask(model=model, encoded=encoded, max_tokens=room, echo=echo, **_stream_options(body), **_lengths(body))


def read_messages(body: Body, limits: Limits) -> Ask:
    """`/v1/messages`."""
    tools = _checked_messages(body)
    asked = required_max_tokens(body)
    model = limits.model_of(body)
    chat = messages_to_chat(body)
    encoded = render_chat(not_empty(chat), tools_to_chat(tools), limits.image_tokens)
    choice = body.get("tool_choice") or {}
    as_chat = {
        "tools": tools_to_chat(tools),
        "tool_choice": {
            "any": "required",
            "none": "none",
            "tool": {"type": "function", "function": {"name": choice.get("name")}},
        }.get(choice.get("type", "auto"), "auto"),
    }
    tool, is_named = _chosen_tool(as_chat, chat)
    return Ask(
        model=model,
        encoded=encoded,
        max_tokens=limits.room_for(encoded, asked, "max_completion_tokens"),
        is_stream=bool(body.get("stream")),
        tool=tool,
        is_tool_named=is_named,
        **_lengths(body),
    )


def read_count(body: Body, limits: Limits) -> Ask:
    """`/v1/messages/count_tokens`: a prompt, of which nothing is generated."""
    tools = _checked_messages(body)
    model = limits.model_of(body)
    encoded = render_chat(not_empty(messages_to_chat(body)), tools_to_chat(tools), limits.image_tokens)
    if count_tokens(encoded) > limits.context_tokens:
        raise faults.prompt_too_long(limits.context_tokens, count_tokens(encoded), is_exact=False)
    return Ask(model=model, encoded=encoded, max_tokens=1)


def read_tokenize(body: Body, limits: Limits) -> Ask:
    """`/tokenize`, of a text or of a chat."""
    if "messages" in body:
        encoded = render_chat(not_empty(message_list(body)), body.get("tools"), limits.image_tokens)
    elif isinstance(body.get("prompt"), str):
        encoded = encode(body["prompt"])
    else:
        fields = ("prompt", "messages")
        raise faults.invalid_fields([("missing", f"body.{name}", "Field required", body) for name in fields])
    return Ask(model=limits.model_of(body), encoded=encoded, max_tokens=1)


def _checked_messages(body: Body) -> Sequence[Mapping[str, Any]]:
    """The tools of a Messages request whose messages and tools satisfy the schema."""
    check_messages(message_list(body))
    tools = body.get("tools") or []
    for index, tool in enumerate(tools):
        if "input_schema" not in tool:
            raise faults.missing(f"tools.{index}.input_schema", tool)
    return tools


def _stream_options(body: Body) -> dict[str, Any]:
    options = body.get("stream_options") or {}
    return {
        "is_stream": bool(body.get("stream")),
        "include_usage": bool(options.get("include_usage")),
        "continuous_usage": bool(options.get("include_usage") and options.get("continuous_usage_stats")),
    }


def _lengths(body: Body) -> dict[str, Any]:
    return {"ignore_eos": bool(body.get("ignore_eos")), "min_tokens": int(body.get("min_tokens") or 0)}


def _chosen_tool(body: Body, messages: list[Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """The tool to call and whether the client named it. Left free, the model calls one when the user says so."""
    tools: Sequence[Mapping[str, Any]] = body.get("tools") or ()
    choice = body.get("tool_choice") or "auto"
    if choice not in ("auto", "none") and not tools:
        raise faults.bad_parameter("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if not tools or choice == "none":
        return None, False
    if isinstance(choice, Mapping):
        name = (choice.get("function") or {}).get("name")
        for tool in tools:
            if (tool.get("function") or {}).get("name") == name:
                return tool, True
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise faults.bad_parameter(message, "tool_choice")
    if choice == "required" or "use the tool" in last_user_text(messages).lower():
        return tools[0], False
    return None, False


Reader = Callable[[Body, Limits], Ask]
