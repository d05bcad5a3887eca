"""Where sessions go: home, where their head lies, to whoever has least to do; and that they stay there."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from proxy.core.turns import SessionKey, StopReason, Turn, TurnEnd
from proxy.gate import Gate, GateSettings
from tests.gate.stage import BLOCK, Stage

FOUR = ("a", "b", "c", "d")
HEAD = 7


def home_of(stage, session):
    """Where a session lives."""
    return stage.session(session).home


def crowd(stage, sessions=40, *, head_blocks=20.0):
    """Sessions with one head come one after the other, and each has its first turn."""
    for number in range(sessions):
        waiting = stage.arrive(f"s{number}", head_blocks + 2, head=HEAD, head_blocks=head_blocks)
        stage.pump()
        while waiting.id not in stage.placed:
            let_answer(stage)
            stage.wait(1)
            stage.pump()
    let_answer(stage)


def let_answer(stage):
    """Whatever runs gets its first token and ends."""
    while running := [one for one in stage.placed.values() if one.id in running_ids(stage)]:
        for placement in running:
            stage.gate.first_token(placement, stage.now)
            stage.finish(placement)
        stage.wait(0.5)
        stage.pump()


def running_ids(stage):
    """Turns that hold blocks anywhere."""
    return {hold for name in stage.names for hold in stage.ledger(name).holds}


def test_forty_sessions_with_one_large_head_spread_and_stay():
    """The busiest of four equal backends has at most 1.3 times the mean; every further turn goes home."""
    stage = Stage(*FOUR, blocks=400)
    crowd(stage)
    homes = {f"s{number}": home_of(stage, f"s{number}") for number in range(40)}

    assert max(Counter(homes.values()).values()) <= 13
    for _ in range(3):
        for name, home in homes.items():
            placement = stage.ask(name, 23, head=HEAD, head_blocks=20.0)
            assert placement.backend == home
            assert placement.admission == "resident"
            stage.gate.first_token(placement, stage.now)
            stage.finish(placement)
            stage.wait(0.1)


def test_forty_at_once_spread_as_well():
    """They come within a moment, before anything is computed."""
    stage = Stage(*FOUR, blocks=400)
    for number in range(40):
        stage.arrive(f"s{number}", 22, head=HEAD, head_blocks=20.0)
        stage.pump()
    assert len(stage.placed) == 4

    let_answer(stage)

    assert len(stage.placed) == 40
    homes = Counter(home_of(stage, f"s{number}") for number in range(40))
    assert max(homes.values()) <= 13


def test_a_backend_that_is_gone_moves_its_own_sessions_only():
    """Those of the others go on where they were."""
    stage = Stage(*FOUR, blocks=400)
    crowd(stage)
    homes = {f"s{number}": home_of(stage, f"s{number}") for number in range(40)}
    stage.gate.see_restart("b", stage.now)

    left = tuple(name for name in FOUR if name != "b")
    for name, home in homes.items():
        placement = stage.ask(name, 23, head=HEAD, head_blocks=20.0, candidates=left)
        assert placement is not None
        assert home in {placement.backend, "b"}
        stage.gate.first_token(placement, stage.now)
        stage.finish(placement)
    assert sum(home == "b" for home in homes.values()) > 0


def test_forty_that_come_when_nobody_runs_spread_too():
    """Each has its turn and thinks before the next one comes: nothing but their number tells the backends apart."""
    stage = Stage(*FOUR, blocks=400)
    for number in range(40):
        stage.rest(f"s{number}", 22, head=HEAD, head_blocks=20.0)
        stage.wait(1)

    homes = Counter(home_of(stage, f"s{number}") for number in range(40))
    assert max(homes.values()) <= 13


def test_a_new_session_goes_where_its_head_lies():
    """When the backends have about as many sessions."""
    stage = Stage(*FOUR, blocks=400)
    for name in FOUR:
        for number in range(2):
            stage.rest(f"{name}{number}", 10, candidates=(name,))
    stage.rest("first", 22, head=HEAD, head_blocks=20.0, candidates=("c",))
    stage.wait(1)

    assert stage.ask("second", 22, head=HEAD, head_blocks=20.0).backend == "c"
    assert stage.ask("unlike", 22, head=HEAD + 1, head_blocks=20.0).backend != "c"


def test_a_new_session_goes_past_a_backend_that_is_computing():
    """Whatever hash it has."""
    stage = Stage("a", "b", blocks=400)
    for number in range(6):
        busy = stage.ask(f"busy {number}", 30)
        assert stage.ask(f"next {number}", 5).backend != busy.backend
        let_answer(stage)
        stage.gate.see_restart("a", stage.now)
        stage.gate.see_restart("b", stage.now)


def test_a_weight_is_a_share():
    """Three times the weight, about three times the sessions."""
    gate = Gate(("a", "b"), GateSettings(), weights={"a": 3.0})
    stage = Stage("a", "b", blocks=0)
    stage.gate = gate
    for name in ("a", "b"):
        stage.size(name, 2_000)
    for number in range(80):
        stage.rest(f"s{number}", 5)

    homes = Counter(home_of(stage, f"s{number}") for number in range(80))
    assert 50 <= homes["a"] <= 70


def weighed(weights, *, blocks=2_000):
    """A stage whose backends have these weights; all are as large."""
    stage = Stage(*weights, blocks=0)
    stage.gate = Gate(tuple(weights), GateSettings(), weights=weights)
    for name in weights:
        if blocks:
            stage.size(name, blocks)
    return stage


@pytest.mark.parametrize("blocks", [2_000, 0])
@pytest.mark.parametrize("shared", [{}, {"head": HEAD, "head_blocks": 3.0}])
@pytest.mark.parametrize("weights", [{"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 5.0, "c": 2.0}, {"a": 0.5, "b": 2.0}])
def test_a_burst_follows_the_weights_too(weights, shared, blocks):
    """All come before a prompt is computed: nothing lies anywhere, and what is on its way alone tells who is next."""
    stage = weighed(weights, blocks=blocks)
    sessions = 20 * round(sum(weights.values()) / min(weights.values()))
    burst = []
    for number in range(sessions):
        burst.append(stage.arrive(f"s{number}", 5, **shared))
        stage.pump()

    placed = stage.placed
    went = Counter(placed[one.id].backend if one.id in placed else one.kept_for for one in burst)
    for name, weight in weights.items():
        assert went[name] == pytest.approx(sessions * weight / sum(weights.values()), rel=0.15)


@pytest.mark.parametrize("weight", [0.1, 1.0, 7.0])
def test_equal_weights_change_nothing_in_a_burst(weight):
    """Whatever they are: each choice is that of backends of which nothing is said."""
    burst = weighed(dict.fromkeys(FOUR, weight)), Stage(*FOUR, blocks=2_000)
    for stage in burst:
        for number in range(60):
            stage.ask(f"s{number}", 5 + number % 7, head=HEAD, head_blocks=0.5)

    chosen, plain = ([placement.backend for placement in stage.placed.values()] for stage in burst)
    assert chosen == plain


@pytest.mark.parametrize(("home", "at_home", "elsewhere"), [("a", 120, 40), ("b", 40, 120), ("b", 40, 40)])
def test_backends_as_loaded_as_their_weights_say_keep_who_is_at_home(home, at_home, elsewhere):
    """A session that had to leave, and whose blocks still lie there, does not move for what a weight has brought there.

    In seconds alone the heavier one would be the worse home.
    """
    stage = weighed({"a": 3.0, "b": 1.0})
    other = "b" if home == "a" else "a"
    stage.rest("mine", 60, stop=StopReason.END_TURN, candidates=(home,))
    stage.ledger(home).idle.give_up_place(stage.session("mine"))
    for name, turns in ((home, at_home), (other, elsewhere)):
        for number in range(turns):
            stage.enter(f"{name} {number}", 5, candidates=(name,))

    placement = stage.ask("mine", 61)

    assert placement is not None
    assert placement.backend == home


# -- sessions that are out


def pushed_out(stage, blocks=60):
    """A session that is out, whose blocks still lie at home."""
    stage.rest("mine", blocks, stop=StopReason.END_TURN)
    mine = stage.session("mine")
    stage.ledger(mine.home).idle.give_up_place(mine)
    return mine


def test_a_session_that_is_out_goes_home_where_its_blocks_lie():
    """Though the other backend is empty."""
    stage = Stage("a", "b", blocks=200)
    mine = pushed_out(stage)
    home = mine.home

    placement = stage.ask("mine", 61)

    assert placement.backend == home
    assert placement.admission == "returning"


def test_it_waits_for_a_home_that_will_soon_have_room_rather_than_be_computed_anew():
    """Room comes free at home faster than its prompt could be computed elsewhere."""
    stage = Stage("a", "b", blocks=200)
    mine = pushed_out(stage)
    home, other = mine.home, "b" if mine.home == "a" else "a"
    fill(stage, home, 128)
    stage.room(home).release.tokens_per_s = 100_000.0
    stage.room(home).release.look(stage.now)

    waiting = stage.arrive("mine", 61)
    assert stage.pump(home, other) == []

    stage.wait(30)  # half of what computing 61,000 tokens takes at 3,000 a second is 10 s
    assert stage.pump(other) == ["mine"]
    assert stage.placed[waiting.id].backend == other
    assert stage.gate.counters["moves"] == 1


def test_it_moves_at_once_when_room_at_home_is_far_away():
    """Nothing comes free there."""
    stage = Stage("a", "b", blocks=200)
    mine = pushed_out(stage)
    home = mine.home
    running = fill(stage, home, 128)
    stage.gate.generated(running, 60_000)

    placement = stage.ask("mine", 61)

    assert placement is not None
    assert placement.backend != home


def test_where_misses_are_cheap_moving_is():
    """What LMCache brings in is half as dear, so that half of the wait is enough."""

    def moves_after(seconds, external):
        stage = Stage("a", "b", blocks=200)
        mine = pushed_out(stage)
        home, other = mine.home, "b" if mine.home == "a" else "a"
        for name in ("a", "b"):
            stage.room(name).external.on_report(int(100_000 * external), int(100_000 * (1 - external)))
        fill(stage, home, 128)
        stage.room(home).release.tokens_per_s = 100_000.0
        stage.room(home).release.look(stage.now)
        stage.arrive("mine", 61)
        stage.pump(home, other)
        stage.wait(seconds)
        return stage.pump(other) == ["mine"]

    assert not moves_after(6, external=0.0)
    assert moves_after(6, external=1.0)


def fill(stage, name, blocks):
    """Somebody runs at a backend and goes on running."""
    placement = stage.enter(f"runs at {name}", blocks, candidates=(name,))
    assert placement.backend == name
    return placement


# -- engines of unknown size


def test_turns_of_a_session_stay_on_an_engine_of_unknown_size():
    """Nobody knows what lies there, but where else should it."""
    stage = Stage(*FOUR, blocks=0)
    homes: dict[int, str] = {}
    for round_ in range(3):
        for number in range(12):
            placement = stage.ask(f"s{number}", 5 + round_)
            assert placement.admission == "unlimited"
            assert homes.setdefault(number, placement.backend) == placement.backend
            stage.finish(placement)
    assert len(set(homes.values())) > 1


def test_they_leave_one_that_has_far_more_to_do():
    """More than 1.25 times the mean and two turns."""
    stage = Stage("a", "b", blocks=0)
    first = stage.ask("mine", 5)
    stage.finish(first)
    for number in range(3):
        stage.ask(f"long {number}", 5, candidates=(first.backend,))
    assert stage.ask("mine", 6).backend == first.backend  # three against a mean of 1.5

    for number in range(3, 9):
        stage.ask(f"long {number}", 5, candidates=(first.backend,))
    assert stage.ask("mine", 7).backend != first.backend


# -- alike in every process

_CHOICE = """
from tests.gate.test_homing import homes_of_newcomers
print(homes_of_newcomers())
"""


def homes_of_newcomers():
    """Where thirty new sessions go, each the first on four backends that nobody uses."""
    return "".join(Stage(*FOUR, blocks=400).ask(f"new {number}", 5).backend for number in range(30))


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_two_processes_choose_the_same_home(seed):
    """With the same facts, whatever Python's own hashes are."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    told = subprocess.run(
        [sys.executable, "-c", _CHOICE], env=environment, capture_output=True, text=True, check=True, timeout=50
    )

    assert told.stdout.strip() == homes_of_newcomers()
    assert set(homes_of_newcomers()) == set(FOUR)


def test_a_thousand_backends_are_looked_at_once():
    """The best is found without asking any of them whether it fits."""
    names = tuple(f"engine-{number}" for number in range(1_000))
    stage = Stage(*names, blocks=100)
    key = SessionKey("", "one")
    turn = Turn(key, text_bytes=4 * 5 * BLOCK)

    (waiting, placement, was_tried) = stage.gate.admit(turn, names, stage.now, open_names=names)

    assert was_tried
    assert placement is not None
    stage.gate.end(placement, TurnEnd(5_000, 0, 10, StopReason.TOOL_USE, True, True), stage.now)
    assert waiting.session.home == placement.backend
