"""Several engines behind one address, over real sockets: turns go to the rank that holds their prefix."""

import asyncio
import json

import pytest

from tests.fakes.backend import answering
from tests.net.conftest import chat
from tests.net.test_admission import OK, Client, Engine, admitting, asking, page, started, waiting
from tests.net.test_models import LONG, fleet_of
from tests.net.test_nothing_left import nothing_is_left
from tests.net.test_upstream_faults import status_of

HEADER = "x-data-parallel-rank"


def ranked_page(*ranks, blocks=100, start=1_000):
    """A metrics page of engines of a hundred thousand tokens each; of blocks, each one's label says the sum."""
    lines = page(blocks=len(ranks) * (blocks + 1) - 1, start=start).splitlines(keepends=True)
    labelled = [line for line in lines if "engine=" in line]
    own = [line.replace('engine="0"', f'engine="{rank}"') for rank in ranks for line in labelled]
    return "".join([*own, *(line for line in lines if "engine=" not in line)])


async def turn(fleet, session, text, **headers):
    """One turn of a session; the prompt tokens that the engine had cached."""
    _, _, answer = await fleet.ask("m", text=text, **{"x-session-id": session, **headers})
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def hits(engine):
    """Prompt tokens that an engine was asked for, and found."""
    return engine.counters.prefix_queries, engine.counters.prefix_hits


async def test_a_session_stays_on_the_rank_that_holds_its_prefix():
    """And all ranks get sessions; what clients say of ranks is not passed on."""
    sessions = [f"session-{number}" for number in range(8)]
    async with fleet_of((("m",), ()), data_parallel=4) as fleet:
        (server,) = fleet.engines
        texts = {session: f"{session} {LONG}" for session in sessions}
        await asyncio.gather(*(turn(fleet, session, texts[session]) for session in sessions))
        asked = [hits(engine)[0] for engine in server.engines]
        assert all(asked)

        again = [await turn(fleet, session, texts[session] + " more", **{HEADER: "0"}) for session in sessions]

        assert all(again)
        assert len({asked[0] < hits(engine)[0] for engine in server.engines}) == 1
        rooms = fleet.proxy.waiting_room.gate.rooms
        assert sum(len(room.ledger.idle) for room in rooms.values()) == len(sessions)
        assert {room.ghost_misses for room in rooms.values()} == {0}


async def test_without_ranks_the_backend_chooses_and_prefixes_are_lost():
    """What `sum` costs: this is why there are ranks."""
    sessions = [f"session-{number}" for number in range(8)]
    async with fleet_of((("m",), ()), data_parallel=4, backend={"data_parallel": "sum"}) as fleet:
        texts = {session: f"{session} {LONG}" for session in sessions}
        for session in sessions:
            await turn(fleet, session, texts[session])
        again = await asyncio.gather(*(turn(fleet, session, texts[session] + " more") for session in sessions))

        assert not all(again)
        assert list(fleet.proxy.waiting_room.gate.rooms) == ["b0"]


async def test_ranks_show_as_one_backend():
    """In the metrics, which are a closed set of configured names; the log says the rank."""
    async with fleet_of((("m",), ()), data_parallel=2) as fleet:
        await fleet.ask("m")
        one = fleet.engines[0].engine.config
        value = fleet.proxy.metrics.registry.get_sample_value

        capacity = value("tidegate_backend_kv_capacity_tokens", {"backend": "b0"})
        assert capacity == 2 * (one.num_gpu_blocks - 1) * one.block_tokens
        assert value("tidegate_backend_kv_capacity_tokens", {"backend": "b0#1"}) is None
        await fleet.until(lambda: "request.finished" in fleet.log.getvalue())
        lines = [json.loads(line) for line in fleet.log.getvalue().splitlines()]
        assert [line["ranks"] for line in lines if line["event"] == "backend.ranks"] == [2]
        assert [line["rank"] for line in lines if line["event"] == "request.finished"] in ([0], [1])


@pytest.mark.parametrize(("ranks", "sent"), [(("0", "1"), {"0", "1"}), (("0",), {None}), (("6", "7"), {"0", "1"})])
async def test_the_header_is_sent_only_where_there_are_several(ranks, sent):
    """One's own place in the list, not the label: a node of several counts its own. Others' words are stopped."""
    async with admitting(answering(OK), metrics_page=ranked_page(*ranks)) as gate:
        extra = b"X-Data-Parallel-Rank: 5\r\nx-session-id: %b\r\n"
        asked = (gate.raw(chat(b'{"model":"m","messages":[]}', extra=extra % b"s%d" % number)) for number in range(8))
        answers = await asyncio.gather(*asked)

        assert {status_of(answer) for answer in answers} == {200}
        assert {request.header(HEADER) for request in gate.backend.seen} == sent


async def test_responses_name_no_rank_since_vllm_would_not_follow_it():
    """They run wherever the server likes: booked on the pool, no rank is in the log, and none believes their prefix."""
    async with admitting(answering(OK), metrics_page=ranked_page("0", "1")) as gate:
        for _ in range(2):
            answer = await gate.raw(asking("codex", 10, path=b"/v1/responses", stream=False))
            assert status_of(answer) == 200
        await gate.raw(asking("claude", 10, stream=False))

        assert [request.header(HEADER) is None for request in gate.backend.seen] == [True, True, False]
        idle = {name: len(room.ledger.idle) for name, room in gate.proxy.waiting_room.gate.rooms.items()}
        assert idle["b0#any"] == 1
        assert sorted([idle["b0"], idle["b0#1"]]) == [0, 1]
        await gate.until(lambda: gate.log.getvalue().count("request.finished") == 3)
        lines = [json.loads(line) for line in gate.log.getvalue().splitlines()]
        assert ["rank" in line for line in lines if line["event"] == "request.finished"] == [False, False, True]
        shown = gate.proxy.metrics.registry.get_sample_value("tidegate_sessions", {"backend": "b0", "state": "idle"})
        assert shown == 2


async def test_what_generates_nothing_names_no_rank():
    """Counting tokens, listing and the like may be done by any."""
    async with admitting(answering(OK), metrics_page=ranked_page("0", "1")) as gate:
        await gate.raw(chat(b'{"model":"m","messages":[]}', path=b"/v1/messages/count_tokens"))

        assert [request.header(HEADER) for request in gate.backend.seen] == [None]


async def test_an_engine_that_comes_back_with_fewer_is_asked_for_none_that_it_has_not():
    """VLLM answers 400 for a rank that there is not, and no client could make sense of that."""
    async with admitting(answering(OK), metrics_page=ranked_page("0", "1"), health={"interval_s": 0.05}) as gate:
        backend = gate.backend
        rooms = gate.proxy.fleet.ranks.rooms_of
        assert len(rooms("b0")) == 2
        backend.health_status = 503
        await gate.until(lambda: len(rooms("b0")) == 1)

        backend.metrics_page, backend.health_status = ranked_page("0", start=2_000), 200
        await gate.until(lambda: gate.proxy.fleet.health.is_up("b0"))
        for number in range(4):
            body = b'{"model":"m","messages":[{"role":"user","content":"%d"}]}' % number
            assert status_of(await gate.raw(chat(body))) == 200

        assert {request.header(HEADER) for request in backend.seen} == {None}


async def test_ranks_that_appear_later_take_who_waits():
    """The address is full with one engine; the next report shows two, and nothing else has to happen."""
    engine = Engine()
    async with admitting(engine, metrics_page=ranked_page("0")) as gate:
        clients = await started(gate, engine, "one", "two")
        clients.append(Client(gate, asking("three")))
        await gate.until(lambda: waiting(gate) == 1)

        gate.backend.metrics_page = ranked_page("0", "1")
        await gate.until(lambda: "three" in engine.begun)

        assert [request.header(HEADER) for request in gate.backend.seen] == [None, None, "1"]
        for session in ("one", "two", "three"):
            engine.end(session)
        assert [status_of(await client.answer) for client in clients] == [200, 200, 200]
        await nothing_is_left(gate)


async def test_a_rank_that_goes_leaves_its_turns_to_their_end():
    """And nothing of them booked; who waited for it goes elsewhere or on waiting."""
    engine = Engine()
    async with admitting(engine, metrics_page=ranked_page("0", "1")) as gate:
        clients = await started(gate, engine, "one", "two", "three", "four")
        clients.append(Client(gate, asking("five")))
        await gate.until(lambda: waiting(gate) == 1)
        gate.backend.metrics_page = ranked_page("0")
        await gate.until(lambda: len(gate.proxy.fleet.ranks.rooms_of("b0")) == 1)

        for session in ("one", "two", "three", "four", "five"):
            engine.end(session)

        assert [status_of(await client.answer) for client in clients] == [200] * 5
        assert gate.backend.seen[-1].header(HEADER) is None
        await nothing_is_left(gate)
