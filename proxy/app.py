"""The composition root: the only place that wires parts together, starts them and stops them.

Called by the command line and by tests. Decides nothing about a request.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from proxy import __version__
from proxy.config import BackendConfig, TidegateConfig
from proxy.core.backends import Backend
from proxy.dispatch import Dispatcher, Fleet
from proxy.net.admin import AdminPages, admin_application
from proxy.net.auth import Gatekeeper
from proxy.net.client_side import ClientSide
from proxy.net.forward import ForwardSettings, HttpForwarder, close_expired_for_ever
from proxy.net.loop_lag import watch_loop_lag
from proxy.net.probe import Prober, ProbeSettings
from proxy.net.request_reading import BodyBudget
from proxy.net.server import DataServer, ServerSettings
from proxy.net.upstream import UpstreamTimeouts
from proxy.policy.admission import AdmitAll
from proxy.state.health import HealthTable, Probe
from proxy.state.ledger import Ledger
from proxy.state.models import ModelTable
from proxy.state.stored_responses import StoredResponses
from proxy.telemetry.logs import EventLog
from proxy.telemetry.metrics import BackendGauges, Metrics
from proxy.telemetry.recorder import FinishedRequestRecorder

_STOP_NOW_S = 0.05
"""aiohttp takes zero for "no limit"; this is as good as at once."""


@dataclass(slots=True)
class RunningProxy:
    """A proxy that answers.

    Attributes:
        url: where clients connect.
        admin_url: where the admin paths are.
        fleet: what it knows of its backends.
    """

    url: str
    admin_url: str
    fleet: Fleet
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
        self._server.pre_shutdown()
        await self._server.shutdown(max(self._drain_s, _STOP_NOW_S))


def backend_of(config: BackendConfig) -> Backend:
    """A configured backend as the plain value that the rest of the program knows."""
    return Backend(
        name=config.name,
        host=config.host,
        port=config.port,
        authority=config.authority,
        is_tls=config.is_tls,
        path_prefix=config.path_prefix,
        api_key=config.api_key.get_secret_value() if config.api_key else None,
    )


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
        backends=lambda: _gauges(fleet),
        buffered_body_bytes=lambda: budget.held_bytes,
        open_connections=lambda: len(server.connections),
        dropped_log_lines=lambda: log.dropped_lines,
    )
    forwarder = HttpForwarder(backends, _forward_settings(config), clock)
    dispatcher = Dispatcher[ClientSide](
        fleet=fleet,
        admission=AdmitAll(),
        forwarder=forwarder,
        clock=clock,
        chance=random.Random().randrange,  # noqa: S311 - spreads load, guards nothing
        max_attempts=config.retry.max_attempts,
    )
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
        on_change=lambda name, is_up, probe: _log_change(log, name, probe, is_up=is_up),
        clock=clock,
    )
    proxy: RunningProxy | None = None

    def is_draining() -> bool:
        return proxy is not None and proxy.is_draining

    pages = AdminPages(
        version=__version__,
        fleet=fleet,
        exposition=lambda accept: metrics.exposition(accept, now=clock()),
        is_draining=is_draining,
    )
    has_own_listener = config.admin.listen is not None
    server = DataServer(
        settings=_server_settings(config),
        dispatcher=dispatcher,
        models=fleet.models,
        gatekeeper=Gatekeeper(key.get_secret_value() for key in config.auth.keys),
        budget=budget,
        recorder=FinishedRequestRecorder(metrics, log),
        clock=clock,
        admin_paths={} if has_own_listener else pages.paths(),
        is_draining=is_draining,
    )
    async with AsyncExitStack() as stack:
        stack.callback(forwarder.close)
        stack.push_async_callback(prober.close)
        await prober.probe_once()
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
                tasks.create_task(watch_loop_lag(metrics.observe_event_loop_lag), name="loop lag"),
            ]
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
    )


def _forward_settings(config: TidegateConfig) -> ForwardSettings:
    timeouts = config.timeouts
    return ForwardSettings(
        timeouts=UpstreamTimeouts(
            connect_s=timeouts.connect_s,
            first_byte_s=timeouts.first_byte_s,
            idle_s=timeouts.idle_s,
            keepalive_s=timeouts.backend_keepalive_s,
            max_age_s=timeouts.backend_connection_age_s,
        ),
        answer_buffer_bytes=config.limits.answer_buffer_bytes,
        has_receipts=config.telemetry.receipts,
    )


def _server_settings(config: TidegateConfig) -> ServerSettings:
    timeouts, limits = config.timeouts, config.limits
    return ServerSettings(
        headers_s=timeouts.headers_s,
        body_s=timeouts.body_s,
        keepalive_s=timeouts.keepalive_s,
        write_stall_s=timeouts.write_stall_s,
        body_bytes=limits.body_bytes,
        header_field_bytes=limits.header_field_bytes,
        headers=limits.headers,
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


def _gauges(fleet: Fleet) -> list[BackendGauges]:
    return [
        BackendGauges(
            name=backend.name,
            is_up=fleet.health.is_up(backend.name),
            inflight_requests=fleet.ledger.inflight(backend.name),
        )
        for backend in fleet.backends
    ]


def _log_change(log: EventLog, name: str, probe: Probe, *, is_up: bool) -> None:
    if is_up:
        log.event("backend.up", level="info", backend=name)
    else:
        log.event("backend.down", level="warning", backend=name, probe=probe.value)
