"""Chats as prompts."""

from typing import Any

from proxy.sim.answers import plan_answer
from proxy.sim.chat_template import last_user_text, messages_to_chat, render_chat, tool_call_text, tools_to_chat
from proxy.sim.text import count_tokens

USER = {"role": "user", "content": "hello there"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"required": ["at"]}}}


def test_next_turn_begins_with_this_turn_and_its_answer():
    """What was generated comes back as the very tokens, so that the prefix cache can find it."""
    prompt = render_chat([USER], None, 0)
    answer = plan_answer(b"seed", 500)
    turn = [USER, {"role": "assistant", "content": answer.text}, USER]
    assert render_chat(turn, None, 0).startswith(prompt + answer.encoded)


def test_tool_calls_come_back_as_generated():
    """The same holds for a tool call in either dialect."""
    prompt = render_chat([USER], None, 0)
    answer = plan_answer(b"seed", 500, tool=TOOL)
    assert answer.tool_call
    function = {"name": answer.tool_call.name, "arguments": answer.tool_call.arguments}
    chat: list[Any] = [USER, {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}]
    block = {"type": "tool_use", "id": "1", "name": "look", "input": {"at": "example"}}
    messages = messages_to_chat({"messages": [USER, {"role": "assistant", "content": [block]}]})
    assert render_chat(chat, None, 0).startswith(prompt + answer.encoded)
    assert render_chat(messages, None, 0).startswith(prompt + answer.encoded)


def test_both_dialects_render_alike():
    """A Messages request costs what the same chat request costs."""
    body = {
        "system": "be brief",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello there"}]}],
    }
    chat = [{"role": "system", "content": "be brief"}, USER]
    assert render_chat(messages_to_chat(body), None, 0) == render_chat(chat, None, 0)


def test_tool_results_become_turns_of_their_own():
    """A result comes before what the user says beside it, with its image."""
    image = {"type": "image", "source": {"type": "base64", "data": "abc"}}
    blocks = [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "seen"}, image]},
        {"type": "text", "text": "and now?"},
    ]
    chat = messages_to_chat({"messages": [{"role": "user", "content": blocks}]})
    assert [message["role"] for message in chat] == ["tool", "user"]
    assert count_tokens(render_chat(chat, None, 100)) > 100


def test_images_cost_a_fixed_number_of_tokens():
    """Both dialects' images cost the same whatever their size."""
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
    without = count_tokens(render_chat([{"role": "user", "content": ""}], None, 0))
    assert count_tokens(render_chat(chat, None, 700)) == without + 700


def test_tools_are_part_of_the_prompt():
    """Tools cost tokens, at the front, where agents share them."""
    with_tools = render_chat([USER], [TOOL], 0)
    assert with_tools.endswith(render_chat([USER], None, 0))
    assert count_tokens(with_tools) > 20
    assert tools_to_chat([]) is None


def test_last_user_text():
    """Only a user's own last word counts."""
    assert last_user_text([USER]) == "hello there"
    assert last_user_text([{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]) == "a b"
    assert last_user_text([USER, {"role": "tool", "content": "use the tool"}]) == ""
    assert last_user_text([]) == ""


def test_tool_call_text():
    """A tool call is written as the Hermes format has it."""
    assert tool_call_text("look", "{}") == '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
