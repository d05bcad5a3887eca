"""The settings themselves, one frozen model a section, each with its effect, default and danger.

Built by `loading.py`; read by `app.py`, which unpacks them into plain values. Never reads a file or the environment.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from proxy.config.backend import BackendConfig, repeated
from proxy.config.faults import ConfigError
from proxy.config.values import (
    Count,
    Host,
    ModelName,
    ModelPattern,
    Port,
    Seconds,
    SecondsOrZero,
    Secret,
    SectionConfig,
    SizeBytes,
    Tag,
    setting,
    size_setting,
)


class AddressConfig(SectionConfig):
    """Where to listen for administration."""

    host: Host = setting(
        "127.0.0.1",
        "Address that the admin paths listen on.",
        "Metrics name your backends and models, so do not open this wider than your monitoring needs.",
    )
    port: Port = setting(
        8901,
        "TCP port of the admin paths; 0 lets the system choose.",
        "A port in use stops the start.",
    )


class ListenConfig(SectionConfig):
    """Where clients connect."""

    host: Host = setting(
        "127.0.0.1",
        "Address that clients connect to; 0.0.0.0 or :: is every interface.",
        "On anything but a loopback address everybody who reaches it can use your engines: set auth.keys too.",
    )
    port: Port = setting(
        8900,
        "TCP port that clients connect to; 0 lets the system choose.",
        "A port in use stops the start.",
    )


class AdminConfig(SectionConfig):
    """The admin paths /metrics, /healthz, /readyz and /status."""

    listen: AddressConfig | None = setting(
        None,
        "An address (host, port) of their own for the admin paths.",
        "Without one they are answered on the data port, where every client can read them.",
        shown="null, the data port",
    )


class ModelsConfig(SectionConfig):
    """The names that clients ask for."""

    aliases: dict[ModelPattern, ModelName] = setting(
        {},
        "Names that clients ask for, and the served name that each stands for, e.g. claude-haiku-*: qwen3-coder. "
        "* and ? match anything in a name that no backend lists; a name without them always counts, is listed, and "
        "goes before. Of several patterns the first one that matches counts.",
        "The engine is sent, and its answer says, the served name. * alone answers every misspelt name. An alias of an "
        "alias is refused.",
        shown="{}, none",
    )
    tags: dict[ModelPattern, Annotated[tuple[Tag, ...], Field(min_length=1)]] = setting(
        {},
        "Served names or patterns of them, and the tags of the backends that their requests may go to, e.g. "
        "qwen3-*: [h200]. A name goes before patterns, of which the first one that matches counts; all its tags are "
        "needed. Other models go to any backend that lists them.",
        "With no such backend up, requests get 503 though others list the model.",
        shown="{}, none",
    )
    unknown: Literal["refuse", "forward"] = setting(
        "refuse",
        "What becomes of a name that no backend lists: refuse answers 404 at once, forward asks an engine.",
        "Engines that load adapters when asked for them, or look at no name, need forward; that waits for room as all "
        "do. Before it refuses a name, the proxy asks the backends for their models anew, once a second at most.",
    )
    clamp_max_tokens: bool = setting(
        False,
        "Lowers a max_tokens that does not fit into the model's context beside the prompt, by an estimate of that one.",
        "Clients that ask for too much then get shorter answers instead of an error that says so.",
    )

    @field_validator("aliases")
    @classmethod
    def _are_no_chain(cls, aliases: dict[str, str]) -> dict[str, str]:
        chained = [f"{asked}: {served}" for asked, served in aliases.items() if served in aliases and served != asked]
        if chained:
            raise ValueError(f"an alias of an alias; write the served name: {', '.join(chained)}")
        return aliases


class AuthConfig(SectionConfig):
    """Who may use the proxy. With no key at all everybody may."""

    keys: tuple[Secret, ...] = setting(
        (),
        "Keys that clients may present as a bearer token or in x-api-key; keys of keys_file are added to them.",
        "An empty list without keys_file lets everybody in.",
        shown="[], open to everybody",
    )
    keys_file: Path | None = setting(
        None,
        "File with one key a line; blank lines and lines that begin with # are skipped. Read once at the start.",
        "A file that cannot be read or holds no key stops the start, so that a mistake never opens the proxy.",
        shown="null",
    )


class TimeoutsConfig(SectionConfig):
    """How long the proxy waits, in seconds."""

    headers_s: Seconds = setting(
        10.0,
        "A client may take this long to send a request's head.",
        "Too long lets idle connections pile up; too short cuts off slow links.",
    )
    body_s: Seconds = setting(
        60.0,
        "A client may take this long to send a request's body.",
        "Too short refuses long prompts over slow links; too long lets slow senders hold memory.",
    )
    keepalive_s: Seconds = setting(
        75.0,
        "A client's connection without a request is kept open this long.",
        "Shorter than the idle time of a load balancer in front of it, it makes that one meet closed connections.",
    )
    connect_s: Seconds = setting(
        2.0,
        "Opening a connection to a backend, TLS included, may take this long before another backend is tried.",
        "Too long delays failover by that much for each attempt; too short gives up on distant engines.",
    )
    first_byte_s: Seconds = setting(
        600.0,
        "A backend may take this long to begin its answer. Long prompts wait in the engine's queue and prefill first, "
        "and an answer that is not streamed begins only when it is complete.",
        "Too short kills work that the engine then has done for nothing; too long hides an engine that hangs.",
    )
    idle_s: Seconds = setting(
        300.0,
        "A backend may be silent this long in the middle of an answer.",
        "Too short cuts streams that other prompts' prefill starves; too long hides an engine that hangs.",
    )
    keepalive_ping_s: SecondsOrZero = setting(
        15.0,
        "A client whose stream has been silent this long gets a ping (an event on /v1/messages, a comment elsewhere), "
        "and again after as long; 0 for never.",
        "Claude Code shows a warning after 20 s without a byte; load balancers cut idle connections off after 60 s.",
    )
    write_stall_s: Seconds = setting(
        60.0,
        "A client that reads nothing of an answer that waits for it is cut off after this long.",
        "Too long lets a client that stopped reading keep KV cache on the engine occupied.",
    )
    backend_keepalive_s: Seconds = setting(
        4.0,
        "An unused connection to a backend is kept for reuse this long. vLLM's HTTP server (uvicorn) closes a "
        "connection that was idle for 5 s, so the proxy lets go first.",
        "Longer than what the engine allows, requests are sent into connections that are just being closed.",
    )
    backend_connection_age_s: Seconds = setting(
        300.0,
        "A connection to a backend is not reused when it is older than this, so that changes in DNS are noticed.",
        "Too short pays for a new connection on most requests.",
    )
    drain_delay_s: SecondsOrZero = setting(
        0.0,
        "After the order to stop, requests are still accepted for this long while /readyz already says no.",
        "In Kubernetes give 5 to 10, or requests arrive after the listener has closed.",
    )
    drain_s: SecondsOrZero = setting(
        600.0,
        "Requests in flight may take this long to end after the listener has closed; then they are cut off.",
        "Keep drain_delay_s + drain_s below the grace period of whatever stops the process, or it is killed first.",
    )


class LimitsConfig(SectionConfig):
    """What one request, and all of them together, may occupy. Sizes are bytes, or written as 32MiB or 1GB."""

    body_bytes: SizeBytes = size_setting(
        32 * 2**20,
        "Largest request body; a larger one is refused with 413.",
        "Too small refuses long conversations and images; each request may hold this much memory.",
    )
    buffered_bytes: SizeBytes = size_setting(
        512 * 2**20,
        "All request bodies in memory together; beyond it requests are refused with 503 until some end.",
        "Too large for the machine, the process is killed for memory; below body_bytes is refused.",
    )
    header_field_bytes: SizeBytes = size_setting(
        32 * 2**10,
        "Longest single header field, and longest request line.",
        "Too small refuses clients with long cookies or tokens.",
    )
    headers: Count = setting(
        128,
        "Most header fields of one request.",
        "Too few refuses clients behind chains of other proxies.",
    )
    answer_buffer_bytes: SizeBytes = size_setting(
        2**20,
        "How much of a backend's error answer is held in memory to be read before it is passed on.",
        "Too small, long error texts reach the client without having been understood.",
    )

    @field_validator("buffered_bytes")
    @classmethod
    def _holds_one_body(cls, buffered_bytes: int, info: ValidationInfo) -> int:
        if buffered_bytes < info.data.get("body_bytes", 0):
            raise ValueError("must be at least limits.body_bytes, or the largest body could never be accepted")
        return buffered_bytes


class AdmissionConfig(SectionConfig):
    """Whether requests wait at the proxy until an engine's KV cache has room for them."""

    mode: Literal["enforce", "shadow", "off"] = setting(
        "enforce",
        "enforce holds requests until they fit; shadow decides and counts, but lets all pass; off does neither.",
        "Without it more sessions than fit evict each other's prefixes, and every turn is computed anew.",
    )
    target_wait_s: Seconds = setting(
        1_200.0,
        "The wait of a session to aim for when more want in than fit: residents make way after their share of it.",
        "Shorter is fairer and slower, since every change of places costs computing a whole prompt.",
    )
    knee_guard: bool = setting(
        False,
        "Learns how fast each engine writes by how many requests it runs, and holds turns back where more are slower.",
        "Worth a try with speculative decoding; it looks again every ten minutes, and some turns are slower meanwhile.",
    )


class RoutingConfig(SectionConfig):
    """Which backend a session goes to, and how prefixes that engines have cached are found again."""

    hold_herd: bool = setting(
        True,
        "Of prompts that begin with the same system text and tools, none of them cached on a backend, one goes there "
        "and the others wait for its first token, 2 s at most.",
        "An engine that gets them at once computes that beginning for each of them.",
    )

    strip_attribution: bool = setting(
        False,
        "Takes the line out of system prompts that Claude Code puts before them (x-anthropic-billing-header) and that "
        "changes from session to session. vLLM does so itself on /v1/messages since March 2026, and nowhere else.",
        "Where an engine keeps the line, sessions share none of their prompts without this; no other byte is changed.",
    )


class QueueConfig(SectionConfig):
    """The requests that wait for room."""

    max_hold_s: Annotated[Seconds, Field(le=600.0)] = setting(
        240.0,
        "A request is answered with a refusal after waiting this long, and keeps its place when it comes back. A "
        "client that says its own timeout is held for four fifths of that at most.",
        "Claude Code gives a silent connection up at 300 s and sends the request again.",
    )
    max_waiting: Count = setting(
        512,
        "Most requests that wait; beyond it whoever has waited for the shortest time is told when to come back.",
        "Each holds its body in memory and a connection open.",
    )
    overload_status: Literal[429, 503] = setting(
        429,
        "What a request is answered with for which there is no room; /v1/messages always has 429, /v1/responses 503.",
        "With 503 some load balancers in front think that the proxy itself is down.",
    )
    early_stream: Literal["auto", "on", "off"] = setting(
        "auto",
        "A streaming request that waits is answered with 200 and pings before there is an answer: auto does so for "
        "Claude Code on /v1/messages, on for everybody, off for nobody. Needs timeouts.keepalive_ping_s.",
        "What goes wrong after that is an event in the stream and has no status; most clients do not retry on it.",
    )
    early_stream_after_s: Seconds = setting(
        5.0,
        "How long a request waits before its stream is opened early.",
        "Short, requests that wait for a moment lose the status of an error and the headers that say how they waited.",
    )


class RetryConfig(SectionConfig):
    """When a failed attempt is repeated: never after a byte of an answer has come."""

    max_attempts: Annotated[Count, Field(le=10)] = setting(
        3,
        "Most attempts for one request, the first included; a backend that cannot be reached is left for another one.",
        "1 turns failover off; many attempts add up to max_attempts x timeouts.connect_s of waiting.",
    )


class HealthConfig(SectionConfig):
    """How the proxy finds out which backends are up."""

    interval_s: Seconds = setting(
        2.0,
        "Each backend is probed this often.",
        "Long intervals keep sending requests to an engine that has gone.",
    )
    timeout_s: Seconds = setting(
        5.0,
        "A probe without an answer after this long has failed.",
        "Too short ejects engines that are merely busy with a long prefill.",
    )
    fall: Count = setting(
        3,
        "A backend is down after this many failed probes in a row.",
        "1 ejects an engine for a single lost packet; many keep a dead one in service.",
    )
    path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=1024)] = setting(
        "/health",
        "Path that is probed, behind the backend's path prefix; only a 200 answer is good.",
        "A path that the engine does not have makes it look down for ever.",
    )
    models_interval_s: Seconds = setting(
        30.0,
        "Each backend is asked this often which models it serves.",
        "Long intervals route to adapters that are no longer loaded.",
    )


class UsageConfig(SectionConfig):
    """Token counts."""

    ask_engine: Literal["off", "on", "auto"] = setting(
        "off",
        "Streams of chat and completions say how many tokens they took only where they are asked to. on asks where the "
        "client did not and takes that event out of its stream; auto does so while every engine is known to be vLLM or "
        "SGLang by its metrics page.",
        "Off, such streams are counted nowhere. On, engines that do not know stream_options refuse them, and clients "
        "miss what an engine writes only into the event that is taken out (vLLM: system_fingerprint).",
    )


class TelemetryConfig(SectionConfig):
    """What the proxy says about itself."""

    log_format: Literal["auto", "json", "console"] = setting(
        "auto",
        "json is one object a line, console is for people; auto is console on a terminal and json elsewhere.",
        "Log collectors cannot parse console lines.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "Lowest level that is logged; every finished request is one line at info or above.",
        "warning and above keep no trace of requests that went well.",
    )
    receipts: bool = setting(
        True,
        "Answers carry x-tidegate-* headers: which backend answered and what the proxy decided.",
        "They name your backends to every client.",
    )


class TidegateConfig(SectionConfig):
    """A whole configuration."""

    listen: ListenConfig = Field(default=ListenConfig(), description="Where clients connect.")
    admin: AdminConfig = Field(
        default=AdminConfig(), description="The admin paths /metrics, /healthz, /readyz and /status."
    )
    backends: tuple[BackendConfig, ...] = Field(
        default=(), description="The engines. Serving needs at least one; an engine listed twice is refused."
    )
    models: ModelsConfig = Field(default=ModelsConfig(), description="The names that clients ask for.")
    auth: AuthConfig = Field(default=AuthConfig(), description="Who may use the proxy; without keys, everybody.")
    timeouts: TimeoutsConfig = Field(default=TimeoutsConfig(), description="How long the proxy waits, in seconds.")
    limits: LimitsConfig = Field(
        default=LimitsConfig(),
        description="What one request, and all together, may occupy. Sizes are bytes, or written as 32MiB or 1GB.",
    )
    admission: AdmissionConfig = Field(
        default=AdmissionConfig(),
        description="Whether requests wait at the proxy until an engine's KV cache has room for them.",
    )
    routing: RoutingConfig = Field(
        default=RoutingConfig(),
        description="Which backend a session goes to, and how prefixes that engines have cached are found again.",
    )
    queue: QueueConfig = Field(default=QueueConfig(), description="The requests that wait for room.")
    retry: RetryConfig = Field(
        default=RetryConfig(),
        description="When a failed attempt is repeated: never after a byte of an answer has come.",
    )
    health: HealthConfig = Field(default=HealthConfig(), description="How the proxy learns which backends are up.")
    usage: UsageConfig = Field(default=UsageConfig(), description="Token counts.")
    telemetry: TelemetryConfig = Field(
        default=TelemetryConfig(), description="What the proxy says about itself: logs and response headers."
    )

    @field_validator("admin")
    @classmethod
    def _has_its_own_port(cls, admin: AdminConfig, info: ValidationInfo) -> AdminConfig:
        listen: ListenConfig | None = info.data.get("listen")
        if admin.listen and listen and listen.port and (admin.listen.port == listen.port):
            raise ValueError("listen.port is the data port already; leave admin.listen out to share it")
        return admin

    @field_validator("backends")
    @classmethod
    def _are_distinct(cls, backends: tuple[BackendConfig, ...]) -> tuple[BackendConfig, ...]:
        faults = repeated(backends)
        if faults:
            raise ValueError("; ".join(faults))
        return backends

    @field_validator("models")
    @classmethod
    def _has_backends_with_its_tags(cls, models: ModelsConfig, info: ValidationInfo) -> ModelsConfig:
        backends: tuple[BackendConfig, ...] = info.data.get("backends", ())
        lost = [
            f"{model}: {', '.join(needed)}"
            for model, needed in models.tags.items()
            if not any(set(needed) <= set(backend.tags) for backend in backends)
        ]
        if lost and backends:
            raise ValueError(f"no backend has all the tags that tags asks for: {'; '.join(lost)}")
        return models

    def require_backends(self) -> None:
        """Say so when there is nothing to serve from.

        Raises:
            ConfigError: no backend is configured.
        """
        if not self.backends:
            raise ConfigError(["backends: at least one is needed (--backend URL, TIDEGATE_BACKENDS or a config file)"])
