import base64
import copy
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.prompts import facts_of

TOOLS = [{"name": "bash", "description": "runs", "input_schema": {"type": "object", "properties": {"content": {}}}}]
MARK = {"type": "ephemeral"}


def said(text, role="user", **more):
    """A message of one text block."""
    return {"role": role, "content": [{"type": "text", "text": text, **more}]}


def body(*messages, system="You are an agent."):
    """An Anthropic request."""
    return {"model": "m", "system": [{"type": "text", "text": system}], "tools": TOOLS, "messages": list(messages)}


def attributed(cch):
    """A body with Claude Code's attribution line, whose hash may change."""
    fields: Any = body(said("hi"))
    fields["system"].insert(0, {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={cch};"})
    return fields


def test_the_attribution_hash_changes_nothing():
    """L01: two bodies that differ in `cch=` have the same head, and the same as without the line."""
    assert facts_of(attributed("a1b2c")) == facts_of(attributed("0ffee")) == facts_of(body(said("hi")))


LINE = "x-anthropic-billing-header: cc_version=2.1.200.0d9; cc_entrypoint=cli; cch=%s;"
PLACES = {
    "string": lambda line: {"system": f"{line}\nYou are."},
    "later line": lambda line: {"system": f"You are.\n{line}\nAn agent."},
    "block": lambda line: {"system": [{"type": "text", "text": line}, {"type": "text", "text": "You are."}]},
    "block with more": lambda line: {"system": [{"type": "text", "text": f"{line}\nYou are."}]},
    "system message": lambda line: {"messages": [{"role": "system", "content": f"{line}\nYou are."}]},
    "block of a system message": lambda line: {
        "messages": [{"role": "system", "content": [{"type": "text", "text": line}, {"type": "text", "text": "Be."}]}]
    },
    "developer item": lambda line: {"input": [{"role": "developer", "content": f"{line}\nYou are."}]},
    "instructions": lambda line: {"instructions": f"{line}\nYou are."},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_attribution_line_is_ignored_wherever_it_stands(place):
    """L01: other servers get it in a string, or among the messages, with other text after it; that text counts."""
    facts = [facts_of(place(LINE % cch)) for cch in ("a1b2c", "0ffee")]

    assert facts[0] == facts[1]
    assert facts[0].client_version == "2.1.200"
    assert 0 < facts[0].head_bytes < 80
    assert facts[0].head != facts_of(place(f"{LINE % 'a1b2c'}\nAnd more.")).head


def test_text_that_only_mentions_the_attribution_is_kept():
    """Only a block that starts with it is what engines drop."""
    quoted = body(said("hi"), system="About x-anthropic-billing-header: cch=1")

    assert facts_of(quoted).head != facts_of(body(said("hi"))).head


def test_moving_cache_markers_change_nothing():
    """L05: the newest block is marked; a turn later another one is."""
    earlier = body(said("do it"), said("done", "assistant"), said("next", cache_control=MARK))
    later = body(
        said("do it"),
        said("done", "assistant"),
        said("next"),
        said("ok", "assistant"),
        said("more", cache_control=MARK),
    )
    later["system"][0]["cache_control"] = MARK
    later["tools"] = [{**TOOLS[0], "cache_control": MARK}]

    first, second = facts_of(earlier), facts_of(later)

    assert second.chain[: len(first.chain)] == first.chain
    assert (first.head, first.opening) == (second.head, second.opening)


def test_markers_inside_tool_results_change_nothing():
    """L05: they move there most of all."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "out"}]}
    marked: Any = copy.deepcopy(result) | {"cache_control": MARK}
    marked["content"][0]["cache_control"] = MARK

    plain = facts_of(body({"role": "user", "content": [result]}))

    assert plain == facts_of(body({"role": "user", "content": [marked]}))


def test_a_text_is_the_same_as_its_only_block():
    """L05: Claude Code sends a string as a block while it carries the marker, and as a string a turn later."""
    marked, plain = body(said("do it", cache_control=MARK)), body({"role": "user", "content": "do it"})

    assert facts_of(marked).chain == facts_of(plain).chain
    assert facts_of(marked).opening == facts_of(plain).opening


def shuffled(node):
    """The same JSON with every object's keys turned round."""
    if isinstance(node, dict):
        return {key: shuffled(node[key]) for key in reversed(node)}
    return [shuffled(item) for item in node] if isinstance(node, list) else node


def test_key_order_changes_nothing():
    """L05: serializers differ."""
    fields = body(said("a"), {"role": "assistant", "content": [{"type": "tool_use", "input": {"b": 1, "a": {"d": 1}}}]})

    assert facts_of(fields) == facts_of(shuffled(fields))


def reminded_turns():
    """Six turns, each with a new system reminder in the middle, each beginning with the one before."""
    messages = [said("do it")]
    for number in range(6):
        messages += [said(f"step {number}", "assistant"), said(f"left: {1_000 - number}", "system"), said("go on")]
        yield body(*messages)


def test_six_turns_extend_each_other():
    """L03: reminders stay where they are, and every turn's chain begins with the last one's."""
    facts = [facts_of(fields) for fields in reminded_turns()]

    assert len({found.opening for found in facts}) == 1
    assert len({found.head for found in facts}) == 1
    for earlier, later in itertools.pairwise(facts):
        assert later.chain[: len(earlier.chain)] == earlier.chain
        assert len(later.chain) > len(earlier.chain)


def test_a_change_in_the_middle_breaks_the_chain_there():
    """What comes after a change is another prefix though its own text is the same."""
    first, second = facts_of(body(said("a"), said("b"), said("c"))), facts_of(body(said("a"), said("X"), said("c")))

    assert first.chain[0] == second.chain[0]
    assert first.chain[1] != second.chain[1]
    assert first.chain[2] != second.chain[2]


def test_tools_and_system_are_the_head():
    """L14: another tool is another head, and another prefix from the first byte."""
    fields = body(said("hi"))
    more = {**fields, "tools": [*TOOLS, {"name": "web"}]}

    assert facts_of(fields).head != facts_of(more).head
    assert facts_of(fields).opening != facts_of(more).opening
    assert facts_of(fields).head == facts_of(body(said("other"))).head
    assert facts_of({"messages": [said("hi")]}).head == 0


def test_leading_system_messages_are_head_and_prompt():
    """The chat dialect has no field of its own for them; they are counted once."""
    system = {"role": "system", "content": "S" * 4_000}
    facts = facts_of({"messages": [system, said("hi")]})

    assert 4_000 < facts.head_bytes < 4_100
    assert facts.head_bytes < facts.text_bytes < 4_200
    assert len(facts.chain) == 1
    assert facts.head == facts_of({"messages": [system, said("other")]}).head
    assert facts.opening != facts_of({"messages": [system, said("other")]}).opening


def test_equal_heads_with_other_first_messages_are_other_sessions():
    """L11: forty agents with the same 80 kB of instructions are forty."""
    openings = {facts_of(body(said(f"task {number}"), system="S" * 80_000)).opening for number in range(40)}

    assert len(openings) == 40


IMAGE = base64.b64encode(bytes(100_000)).decode()
BINARY = [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": IMAGE}},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
    {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"},
    {"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}},
]


@pytest.mark.parametrize("part", BINARY, ids=lambda part: part["type"])
def test_base64_is_never_text(part):
    """An image costs what an image costs, and another image is another prefix."""
    facts = facts_of({"messages": [{"role": "user", "content": [part]}]})
    other = copy.deepcopy(part)
    holder = next(value for value in other.values() if isinstance(value, dict) or str(value).startswith("data:"))
    if isinstance(holder, dict):
        name = "data" if "data" in holder else "url"
        holder[name] = holder[name][:-4] + "AAAB"
    else:
        other["image_url"] += "AAAB"

    assert facts.text_bytes < 300
    assert 500 < facts.extra_tokens < 5_000
    assert facts.chain != facts_of({"messages": [{"role": "user", "content": [other]}]}).chain


def test_images_inside_tool_results_are_no_text_either():
    """Screenshots come that way."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [BINARY[0]]}

    facts = facts_of({"messages": [{"role": "user", "content": [result]}]})

    assert facts.text_bytes < 300
    assert facts.extra_tokens > 0


def test_responses_say_input_and_instructions():
    """A text alone, or a list of items."""
    assert facts_of({"instructions": "I" * 100, "input": "hi"}).head_bytes == 100
    assert facts_of({"input": "hi"}).chain == facts_of({"input": "hi", "instructions": ""}).chain
    assert len(facts_of({"input": [said("a"), said("b")]}).chain) == 2


def test_a_text_prompt_is_compared_piece_by_piece():
    """A completion's prompt that grew shares its beginning."""
    short, long = facts_of({"prompt": "x" * 10_000}), facts_of({"prompt": "x" * 14_000})
    common = sum(a == b for a, b in zip(short.chain, long.chain, strict=False))

    assert common == 10_000 // 2_048
    assert short.text_bytes == 10_000
    assert short.opening == long.opening


def test_nothing_is_nothing():
    """A body without a prompt has no chain, no head, no size."""
    facts = facts_of({})

    assert (0, 0, 0, ()) == (facts.text_bytes, facts.extra_tokens, facts.head, facts.chain)


def test_lone_surrogates_are_measured():
    """A text that is no Unicode does not stop us."""
    assert facts_of({"prompt": "\ud800"}).text_bytes > 0


@given(st.lists(st.text(max_size=20), min_size=1, max_size=6), st.text(max_size=20))
def test_appending_extends_the_chain(texts, more):
    """Whatever the texts, what was there stays the beginning."""
    before = facts_of(body(*(said(text) for text in texts)))
    after = facts_of(body(*(said(text) for text in [*texts, more])))

    assert after.chain[:-1] == before.chain
    assert after.text_bytes > before.text_bytes


def test_other_models_and_credentials_are_other_prompts():
    """An adapter's blocks are its own; a client's prompts match its own only, while heads are shared by all."""
    mine, other = facts_of(body(said("hi")), "mine"), facts_of(body(said("hi")), "other")
    adapter = facts_of(body(said("hi")) | {"model": "lora"}, "mine")

    assert mine.head == other.head
    assert mine.chain != other.chain
    assert adapter.scope != mine.scope
    assert adapter.head != mine.head
    assert adapter.chain != mine.chain


def test_spans_tell_how_much_text_a_beginning_has():
    """One a message, the head before them."""
    facts = facts_of(body(said("a" * 1_000), said("b" * 2_000, "assistant"), said("c")))

    assert len(facts.spans) == len(facts.chain) == 3
    assert facts.spans[-1] == facts.text_bytes
    assert facts.head_bytes + 1_000 < facts.spans[0] < facts.head_bytes + 1_100
    assert 2_000 < facts.spans[1] - facts.spans[0] < 2_100


def test_a_marker_on_an_image_changes_nothing():
    """L05: the newest block may be one."""
    marked: Any = copy.deepcopy(BINARY[0])
    marked["cache_control"] = MARK
    plain, later = (body({"role": "user", "content": [part]}) for part in (BINARY[0], marked))

    assert facts_of(plain) == facts_of(later)


def test_l61_another_salt_is_another_prompt():
    """The engine shares no block between them, however alike they are."""
    body = {"system": "You are an agent.", "messages": [{"role": "user", "content": "hi"}]}
    plain, red, blue = (facts_of(body | salt) for salt in ({}, {"cache_salt": "red"}, {"cache_salt": "blue"}))

    assert len({plain.head, red.head, blue.head}) == len({plain.opening, red.opening, blue.opening}) == 3
    assert {one.head_bytes for one in (plain, red, blue)} == {plain.head_bytes}
    assert facts_of(body | {"cache_salt": 7}) == plain
