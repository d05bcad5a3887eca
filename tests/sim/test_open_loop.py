"""A recorded trace of unnamed chats: blocks are shared as its ids say, and the gate finds what an oracle finds."""

import json
from dataclasses import replace
from random import Random

import pytest

from proxy.sim.open_loop import HASH_TOKENS, Arrival, OpenLoop, RecordedKeys, chain_of, recorded_arrivals
from proxy.sim.presets import PRESETS
from proxy.sim.simulate_command import build_policy

CONFIG = replace(PRESETS["h200-32b"], block_tokens=HASH_TOKENS, num_gpu_blocks=1_000)


def made_up_trace(chats=60, turns=5, gap_s=25.0):
    """Chats with one block in common whose prompts grow by whatever; the last block of each is cut short."""
    rng = Random(1)
    arrivals = []
    for chat in range(chats):
        at, tokens = rng.uniform(0, 300), rng.randint(4_000, 12_000)
        for turn in range(turns):
            full, rest = divmod(tokens, HASH_TOKENS)
            own = [1_000_000 * (chat + 1) + index for index in range(1, full)]
            # Cut short it holds something else than when the next turn has filled it up.
            cut = [1_000_000 * (chat + 1) + 900_000 + turn] if rest else []
            arrivals.append(Arrival(at, tokens, 200, (0, *own, *cut)))
            at += rng.uniform(0.5, 1.5) * gap_s
            tokens += rng.randint(700, 3_000)
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


def run(spec, backends=4):
    """What a policy makes of it."""
    policy = build_policy(spec, backends, CONFIG)
    return OpenLoop(CONFIG, made_up_trace(), policy).run(0, 600)


def test_the_gate_finds_what_an_oracle_finds():
    """Within 2 % of its hit rate, with the load spread alike; without a rule much less is found."""
    gate, oracle, blind = run("gate"), run("oracle"), run("round-robin")
    assert blind.hit_ratio < 0.8 * oracle.hit_ratio
    assert gate.hit_ratio > 0.98 * oracle.hit_ratio
    assert gate.computed_spread < 1.2 * oracle.computed_spread


def test_keys_are_shared_as_the_trace_says():
    """Split evenly where the engine's blocks are smaller, and only as far as the prompt fills them."""
    first = RecordedKeys(128, Arrival(0.0, 1_300, 1, (0, 1, 2))).prompt(1_300, 1)
    second = RecordedKeys(128, Arrival(0.0, 1_300, 1, (0, 1, 3))).prompt(1_300, 1)
    assert len(first.keys) == 1_300 // 128
    assert first.keys[:8] == second.keys[:8]
    assert not set(first.keys[8:]) & set(second.keys[8:])
    with pytest.raises(ValueError, match="do not divide"):
        RecordedKeys(48, Arrival(0.0, 1_300, 1, (0, 1, 2)))


def test_the_next_turn_goes_on_from_the_last():
    """Though the block that was cut short has another id in it."""
    before, after = chain_of(Arrival(0.0, 1_100, 1, (0, 1, 2))), chain_of(Arrival(0.0, 1_600, 1, (0, 1, 3, 4)))
    assert after[: len(before)] == before
    assert len(after) == 3


def test_reading(tmp_path):
    """Milliseconds become seconds; anything else is refused."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        json.dumps({"timestamp": 1_500, "input_length": 600, "output_length": 7, "hash_ids": [4, 5]}) + "\n"
    )
    assert recorded_arrivals(path) == [Arrival(1.5, 600, 7, (4, 5))]
    path.write_text('{"t": 1}\n')
    with pytest.raises(ValueError, match="Mooncake"):
        recorded_arrivals(path)
