"""The composition root: the only place that wires parts together, starts them and stops them.

Called by the command line and by tests. Decides nothing about a request.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from proxy import __version__
from proxy.config import TidegateConfig
from proxy.core.backends import Backend
from proxy.core.capacity import together
from proxy.core.ports import Clock
from proxy.core.reports import EngineReport, ScrapeFailure
from proxy.core.snapshots import FleetSnapshot
from proxy.dialects.model_names import ModelNames
from proxy.dialects.rewriting import Rewriter
from proxy.dispatch import Dispatcher, Fleet
from proxy.engines.capacity import capacity_of_tokens
from proxy.engines.kv_events import Batch
from proxy.gate import Gate, GateSettings
from proxy.gate.evictions import EvictionWatch
from proxy.gate.reporting import EngineChange, EngineWatch
from proxy.net.admin import AdminPages, admin_application
from proxy.net.auth import Gatekeeper
from proxy.net.client_side import ClientSide
from proxy.net.forward import HttpForwarder, close_expired_for_ever
from proxy.net.keepalive import KeepAlive
from proxy.net.kv_events import KvEventListener, KvEventSettings
from proxy.net.loop_lag import watch_loop_lag
from proxy.net.probe import Prober, ProbeSettings
from proxy.net.request_reading import BodyBudget
from proxy.net.scrape import Scraper, ScrapeSettings
from proxy.net.server import DataServer
from proxy.policy.limit import stale_after_s
from proxy.policy.tags import ModelTags
from proxy.settings import backend_of, engine_settings, forward_settings, server_settings, weights
from proxy.state.health import HealthTable, Probe
from proxy.state.ledger import Ledger
from proxy.state.models import ModelTable
from proxy.state.stored_responses import StoredResponses
from proxy.telemetry.logs import EventLog
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.recorder import FinishedRequestRecorder
from proxy.telemetry.report_log import ReportLog
from proxy.telemetry.snapshots import snapshot_of
from proxy.waiting_room import WaitingRoom
from proxy.web.status_page import status_page

_STOP_NOW_S = 0.05
"""aiohttp takes zero for "no limit"; this is as good as at once."""
_SCRAPING = ScrapeSettings()
_DOWN_GRACE_PROBES = 3
"""With every backend down, what waits is refused after so many probes: an engine's restart takes longer than that."""


@dataclass(slots=True)
class RunningProxy:
    """A proxy that answers.

    Attributes:
        url: where clients connect.
        admin_url: where the admin paths are.
        fleet: what it knows of its backends.
        waiting_room: where requests wait for the gate; None where admission is off.
    """

    url: str
    admin_url: str
    fleet: Fleet
    waiting_room: WaitingRoom | None
    metrics: Metrics
    _site: web.BaseSite
    _server: DataServer
    _drain_delay_s: float
    _drain_s: float
    is_draining: bool = False

    async def drain(self) -> None:
        """Say no at `/readyz`, go on for the drain delay, close the listener, let requests in flight end."""
        self.is_draining = True
        await asyncio.sleep(self._drain_delay_s)
        await self._site.stop()
        await self._server.shutdown(max(self._drain_s, _STOP_NOW_S))


@asynccontextmanager
async def running(config: TidegateConfig, log: EventLog) -> AsyncIterator[RunningProxy]:
    """A proxy that listens from entering to leaving; leaving without `drain` cuts requests off.

    Raises:
        OSError: an address cannot be listened on.
    """
    clock = time.monotonic  # not loop.time: uvloop's has a resolution of a millisecond
    backends = tuple(backend_of(backend) for backend in config.backends)
    fleet = _fleet(config, backends)
    budget = BodyBudget(config.limits.buffered_bytes)
    metrics = Metrics(
        version=__version__,
        snapshot=lambda: _gauges(fleet, waiting_room, scraper, clock()),
        buffered_body_bytes=lambda: budget.held_bytes,
        open_connections=lambda: len(server.connections),
        dropped_log_lines=lambda: log.dropped_lines,
    )
    ping_s, early_s = config.timeouts.keepalive_ping_s, config.queue.early_stream_after_s
    keep_alive = KeepAlive(ping_s, clock, shortest_wait_s=early_s)
    forwarder = HttpForwarder(backends, forward_settings(config), clock, keep_alive)
    chance = random.Random()  # noqa: S311 - spreads load, guards nothing
    waiting_room = _waiting_room(config, fleet, clock, chance.random)
    prober = Prober(
        backends,
        ProbeSettings(
            interval_s=config.health.interval_s,
            timeout_s=config.health.timeout_s,
            models_interval_s=config.health.models_interval_s,
            path=config.health.path,
        ),
        health=fleet.health,
        models=fleet.models,
        on_change=lambda name, is_up, probe: _on_change(log, fleet, waiting_room, name, probe, is_up=is_up),
        on_models=lambda _name: waiting_room.follow_health() if waiting_room is not None else None,
        clock=clock,
    )
    dispatcher = Dispatcher[ClientSide](
        fleet=fleet,
        waiting_room=waiting_room,
        forwarder=forwarder,
        clock=clock,
        chance=chance.randrange,
        max_attempts=config.retry.max_attempts,
        on_down=lambda name: _on_change(log, fleet, waiting_room, name, Probe.DOWN, is_up=False),
        on_route_missing=lambda name, route: _on_route_missing(log, waiting_room, name, route),
        refuses_unknown_models=config.models.unknown == "refuse",
        look_for_models=prober.look_for_models,
        on_not_found=prober.doubt_models,
    )
    proxy: RunningProxy | None = None

    def is_draining() -> bool:
        return proxy is not None and proxy.is_draining

    pages = AdminPages(
        version=__version__,
        fleet=fleet,
        exposition=lambda accept: metrics.exposition(accept, now=clock()),
        is_draining=is_draining,
        snapshot=lambda: _gauges(fleet, waiting_room, scraper, clock()),
        page=status_page,
    )
    names = ModelNames(config.models.aliases, fleet.models.is_served) if config.models.aliases else None
    has_own_listener = config.admin.listen is not None
    server = DataServer(
        settings=server_settings(config),
        dispatcher=dispatcher,
        models=fleet.models,
        gatekeeper=Gatekeeper(key.get_secret_value() for key in config.auth.keys),
        budget=budget,
        recorder=FinishedRequestRecorder(metrics, log),
        clock=clock,
        keep_alive=keep_alive,
        admin_paths={} if has_own_listener else pages.paths(),
        is_draining=is_draining,
        names=names,
        rewriter=_rewriter(config, fleet, names, lambda: scraper),
    )
    async with AsyncExitStack() as stack:
        stack.callback(forwarder.close)
        stack.push_async_callback(prober.close)
        if waiting_room is not None:
            stack.callback(waiting_room.close)
            scraper = _scraper(config, fleet, waiting_room, log, chance=chance.random, on_restart=prober.doubt_models)
            stack.push_async_callback(scraper.close)
        else:
            scraper = None
        await prober.probe_once()
        if scraper is not None:
            # Before the first request: an engine whose size is not known yet would be let fill up.
            await asyncio.gather(*(scraper.scrape_once(backend) for backend in backends))
        runner = web.ServerRunner(server, shutdown_timeout=_STOP_NOW_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, config.listen.host, config.listen.port, backlog=4096)
        await site.start()
        url = _url(config.listen.host, site)
        admin_url = await _start_admin(config, pages, stack) if has_own_listener else url
        proxy = RunningProxy(
            url=url,
            admin_url=admin_url,
            fleet=fleet,
            waiting_room=waiting_room,
            metrics=metrics,
            _site=site,
            _server=server,
            _drain_delay_s=config.timeouts.drain_delay_s,
            _drain_s=config.timeouts.drain_s,
        )
        async with asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(prober.run(), name="probe"),
                tasks.create_task(close_expired_for_ever(forwarder), name="close expired connections"),
                tasks.create_task(keep_alive.run(), name="keep streams alive"),
                tasks.create_task(watch_loop_lag(metrics.observe_event_loop_lag), name="loop lag"),
            ]
            if scraper is not None and waiting_room is not None:
                watches.append(tasks.create_task(scraper.run(), name="scrape"))
                listeners = _kv_event_listeners(config, waiting_room, scraper, metrics, log)
                watches += [tasks.create_task(listener.run(), name="KV events") for listener in listeners]
            try:
                yield proxy
            finally:
                for watch in watches:
                    watch.cancel()


def _fleet(config: TidegateConfig, backends: Sequence[Backend]) -> Fleet:
    health = HealthTable(fall=config.health.fall)
    for backend in backends:
        health.add(backend.name)
    return Fleet(
        backends=backends,
        health=health,
        models=ModelTable(),
        ledger=Ledger(),
        stored_responses=StoredResponses(),
        tags=ModelTags(config.models.tags, {backend.name: backend.tags for backend in config.backends})
        if config.models.tags
        else None,
    )


async def _start_admin(config: TidegateConfig, pages: AdminPages, stack: AsyncExitStack) -> str:
    listen = config.admin.listen
    assert listen is not None
    runner = web.AppRunner(admin_application(pages.paths()), access_log=None, shutdown_timeout=_STOP_NOW_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, listen.host, listen.port)
    await site.start()
    return _url(listen.host, site)


def _url(host: str, site: web.TCPSite) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{site.port}"


def _gauges(fleet: Fleet, waiting_room: WaitingRoom | None, scraper: Scraper | None, now: float) -> FleetSnapshot:
    def reports_of(name: str) -> Sequence[EngineReport]:
        last = scraper.last(name) if scraper is not None else None
        return last.reports if last is not None else ()

    return snapshot_of(fleet, waiting_room.gate if waiting_room is not None else None, reports_of, now)


def _on_route_missing(log: EventLog, waiting_room: WaitingRoom | None, name: str, route: str) -> None:
    """A backend said that it lacks a route: nobody waits for it there any more."""
    log.event("backend.route_missing", level="warning", backend=name, route=route)
    if waiting_room is not None:
        waiting_room.follow_health()


def _on_change(
    log: EventLog, fleet: Fleet, waiting_room: WaitingRoom | None, name: str, probe: Probe, *, is_up: bool
) -> None:
    """A backend went up or down: nothing is resident on an engine that was gone, and others may have to step in."""
    fleet.route_gaps.forget(name)  # what comes back may be another version
    if is_up:
        log.event("backend.up", level="info", backend=name)
    else:
        log.event("backend.down", level="warning", backend=name, probe=probe.value)
    if waiting_room is not None:
        if not is_up:
            for room in fleet.ranks.current_rooms_of(name):
                waiting_room.gate.see_restart(room, time.monotonic())
            fleet.ranks.see(name, 1)  # what comes back may have fewer engines, and refuse a rank that it has not
        waiting_room.follow_health()


def _waiting_room(
    config: TidegateConfig, fleet: Fleet, clock: Clock, spread: Callable[[], float]
) -> WaitingRoom | None:
    if config.admission.mode == "off":
        return None
    gate = Gate(
        (backend.name for backend in fleet.backends),
        GateSettings(
            is_enforcing=config.admission.mode == "enforce",
            max_hold_s=config.queue.max_hold_s,
            target_wait_s=config.admission.target_wait_s,
            report_interval_s=_SCRAPING.interval_s,
            guards_knee=config.admission.knee_guard,
            holds_herd=config.routing.hold_herd,
            max_waiting=config.queue.max_waiting,
            max_waiting_bytes=config.limits.buffered_bytes,
        ),
        weights=weights(config),
    )
    for backend in config.backends:
        if backend.kv_cache_tokens is not None:
            gate.see_capacity(backend.name, capacity_of_tokens(backend.kv_cache_tokens))
    return WaitingRoom(
        gate,
        clock=clock,
        is_up=fleet.is_room_up,
        spread=spread,
        down_grace_s=_DOWN_GRACE_PROBES * config.health.interval_s,
        overload_status=config.queue.overload_status,
    )


def _rewriter(
    config: TidegateConfig, fleet: Fleet, names: ModelNames | None, scraper: Callable[[], Scraper | None]
) -> Rewriter | None:
    """What makes the configured changes to requests; None where there are none to make."""
    asks = config.usage.ask_engine

    def are_all_known() -> bool:
        reading = scraper()
        last = [reading.last(backend.name) for backend in fleet.backends] if reading is not None else [None]
        return all(one is not None and one.reports for one in last)

    strips = config.routing.strip_attribution
    if names is None and not config.models.clamp_max_tokens and asks == "off" and not strips:
        return None
    return Rewriter(
        names=names,
        context_tokens=fleet.models.context_tokens if config.models.clamp_max_tokens else None,
        strips_attribution=strips,
        asks_usage={"off": None, "on": lambda: True, "auto": are_all_known}[asks],
    )


def _scraper(
    config: TidegateConfig,
    fleet: Fleet,
    waiting_room: WaitingRoom,
    log: EventLog,
    *,
    chance: Callable[[], float],
    on_restart: Callable[[str], None],
) -> Scraper:
    """Reads the engines' reports for the gate, and says in the log what changes about them."""
    gate, ranks, clock = waiting_room.gate, fleet.ranks, time.monotonic
    watch = EngineWatch(gate, ranks, engine_settings(config))
    report_log = ReportLog(log, stale_after_s=stale_after_s(_SCRAPING.interval_s))

    def on_report(name: str, reports: Sequence[EngineReport], asked_at: float) -> None:
        before = ranks.rooms_of(name)
        change = watch.take(name, reports, asked_at)
        names = ranks.rooms_of(name)
        if change is EngineChange.RESTARTED:
            fleet.route_gaps.forget(name)
            on_restart(name)  # adapters that were loaded into it are gone
        if names == before:
            waiting_room.pump(ranks.current_rooms_of(name))
        else:
            waiting_room.follow_health()  # who waits may go to other ranks now
        rooms = [gate.rooms[one] for one in names]
        caps = [room.knee.cap for room in rooms if room.knee.cap is not None]
        report_log.came(
            name,
            together([room.capacity for room in rooms]),
            change,
            asked_at,
            turn_cap=sum(caps) if len(caps) == len(rooms) else None,
            ranks=len(rooms),
            is_prefix_cache_inert=all(room.prefixes.is_inert for room in rooms)
            or gate.rooms[ranks.pool_of(name)].prefixes.is_inert,
        )

    def on_failure(name: str, why: ScrapeFailure, asked_at: float) -> None:
        names = ranks.rooms_of(name)
        # What is known of the engine has become older, and nothing else may happen.
        waiting_room.pump(ranks.current_rooms_of(name))
        report_log.failed(name, together([gate.rooms[one].capacity for one in names]), why, asked_at)

    return Scraper(fleet.backends, _SCRAPING, on_report=on_report, on_failure=on_failure, clock=clock, chance=chance)


def _kv_event_listeners(
    config: TidegateConfig, waiting_room: WaitingRoom, scraper: Scraper, metrics: Metrics, log: EventLog
) -> list[KvEventListener]:
    """Listens to the engines that tell what becomes of their caches, and corrects the gate's beliefs."""

    def is_one_engine(name: str) -> bool:
        last = scraper.last(name)
        return last is None or len(last.reports) <= 1

    watch = EvictionWatch(waiting_room.gate, is_one_engine=is_one_engine)

    def on_batch(name: str, batch: Batch) -> None:
        corrections = watch.take(name, batch, time.monotonic())
        metrics.count_kv_events(name, corrections)
        if corrections.cleared:
            log.event("backend.cache_cleared", level="warning", backend=name, sessions=corrections.cleared_sessions)
        if corrections.has_made_room:
            waiting_room.pump((name,))

    def on_gap(name: str, is_filled: bool) -> None:
        metrics.count_kv_event_gap(name, is_filled=is_filled)
        if not is_filled:
            watch.forget(name)
            log.event("backend.kv_events_missed", level="warning", backend=name)

    listened = [(backend.name, backend.kv_events) for backend in config.backends if backend.kv_events is not None]
    return [
        KvEventListener(
            KvEventSettings(name, events.endpoint, events.replay_endpoint, events.topic),
            on_batch=on_batch,
            on_gap=on_gap,
            on_malformed=metrics.count_malformed_kv_events,
            clock=time.monotonic,
        )
        for name, events in listened
    ]
