"""The status page: one look says whether agents wait, and for what. A pure function over what `/status.json` says.

Everything that comes from outside (names of backends and models) is escaped here.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any, Final

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2em;color:#222;background:#fff}"
    "table{border-collapse:collapse;margin:.5em 0 1.5em}td,th{padding:.25em 1.2em .25em 0;text-align:left}"
    "th{font-weight:600}.n{text-align:right}.down,.waits{color:#b00}.dim{color:#666}"
    ".bar{display:flex;width:22em;height:1.1em;background:#e6e6e6}.bar i{display:block;height:100%}"
    ".running{background:#1f6feb}.heads{background:#8957e5}.idle{background:#9ecbff}.foreign{background:#d29922}"
    ".growth{background:#b8c4d0}.key i{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}.bar{background:#333}.dim{color:#999}"
    ".down,.waits{color:#f66}}"
)
_PARTS: Final = (
    ("running", "running_tokens", "running turns"),
    ("heads", "head_tokens", "shared prompts"),
    ("idle", "idle_tokens", "idle sessions"),
    ("foreign", "foreign_tokens", "others"),
    ("growth", "growth_tokens", "kept for answers"),
)
"""Class of the bar's piece, its key, and what it is called. What is left of the bar is free."""
_WAITS_FOR: Final = {
    "resident": "running turns to end, or prompts ahead to be computed; its session has its place",
    "control": "the small share that one-shot requests may take",
    "session": "room for a whole session, prompts ahead to be computed, or the first of a herd",
    "batch": "everybody else",
}
_COLUMNS: Final = (
    ("t", "backend"),
    ("t", "state"),
    ("n", "in flight"),
    ("t", "KV cache"),
    ("n", "free for a new session"),
    ("n", "limit"),
    ("n", "prompt tokens to compute"),
    ("n", "sessions idle"),
    ("n", "waiting in the engine"),
    ("n", "report"),
    ("t", "models"),
)
"""Numbers are set to the right, text to the left."""
_OLD_REPORT_S: Final = 3.0
_INERT: Final = (
    "what should lie in its prefix cache is not found, so turns are computed anew. Is --enable-prefix-caching given, "
    "and is the block size that the engine prints shorter than the prompts? If it worked before, restart it."
)


def status_page(status: Mapping[str, Any]) -> str:
    """The whole page; it loads itself anew every two seconds.

    Args:
        status: what `/status.json` says.
    """
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>"
        f"<meta name=viewport content='width=device-width'><title>Tidegate</title><style>{_STYLE}</style>"
        f"<h1>Tidegate {html.escape(status['version'])}</h1>"
        f"<p>{status['inflight_requests']} requests in flight{', draining' if status['is_draining'] else ''}. "
        f"{_verdict(status['admission'])}</p>"
        f"{_waiting(status['admission']['waiting'])}"
        f"{_backends(status['backends'])}"
        "</html>"
    )


def _verdict(admission: Mapping[str, Any]) -> str:
    if admission["mode"] == "off":
        return "Admission is off: nothing waits here, whatever the engines hold."
    if not admission["waiting_requests"]:
        said = "Nobody waits for room."
    else:
        count = admission["waiting_requests"]
        said = (
            f"<b class=waits>{count} {'request waits' if count == 1 else 'requests wait'} for room</b>"
            f" ({_tokens(admission['held_tokens'])} prompt tokens)."
        )
    return said + (" Admission is in shadow mode: everything is let through." if admission["mode"] == "shadow" else "")


def _waiting(classes: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(one['class'])}<td class=n>{one['requests']}<td class=n>{_tokens(one['prompt_tokens'])}"
        f"<td class=n>{_seconds(one['oldest_wait_s'])}<td>{_WAITS_FOR.get(one['class'], '')}</tr>"
        for one in classes
        if one["requests"]
    )
    head = "<tr><th>waiting<th class=n>requests<th class=n>tokens<th class=n>oldest<th>for</tr>"
    return f"<table>{head}{rows}</table>" if rows else ""


def _backends(backends: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(_row(backend) for backend in backends)
    key = "".join(f"<i class={name}></i>{words}" for name, _, words in _PARTS)
    head = "".join(f"<th class={kind}>{words}" for kind, words in _COLUMNS)
    hints = "".join(
        f"<p class=waits>{html.escape(backend['name'])}: {_INERT}</p>"
        for backend in backends
        if backend["kv"] is not None and backend["kv"]["is_prefix_cache_inert"]
    )
    return f"{hints}<table><tr>{head}</tr>{rows}</table><p class='key dim'>KV cache:{key}</p>"


def _row(backend: Mapping[str, Any]) -> str:
    state = "up" if backend["is_up"] else "down"
    engine = backend["engine"]
    in_engine = engine["waiting_requests"] if engine else None
    return (
        f"<tr><td>{html.escape(backend['name'])}<td class={state}>{state}<td class=n>{backend['inflight_requests']}"
        f"{_kv_cells(backend['kv'])}"
        f"<td class=n>{'' if in_engine is None else in_engine}"
        f"<td class='n {'waits' if (backend['report_age_s'] or 0.0) > _OLD_REPORT_S else ''}'>"
        f"{_seconds(backend['report_age_s'])}"
        f"<td>{html.escape(', '.join(backend['models']))}</tr>"
    )


def _kv_cells(kv: Mapping[str, Any] | None) -> str:
    if kv is None:
        return "<td class=dim>size unknown, nothing is held back<td><td><td><td>"
    capacity = kv["capacity_tokens"]
    pieces = "".join(
        f"<i class={name} style='width:{100 * kv[key] / max(1, capacity):.1f}%'"
        f" title='{words}: {_tokens(kv[key])}'></i>"
        for name, key, words in _PARTS
    )
    return (
        f"<td><div class=bar>{pieces}</div><span class=dim>of {_tokens(capacity)} tokens</span>"
        f"<td class=n>{_tokens(max(0, kv['headroom_tokens']))}<td class=n>{100 * kv['admission_ratio']:.0f} %{_cap(kv)}"
        f"<td class=n>{_tokens(kv['prefill_tokens'])}<td class=n>{kv['idle_sessions']}"
    )


def _cap(kv: Mapping[str, Any]) -> str:
    """Turns are counted as well where more of them were seen to be slower; red when that is what others wait for."""
    cap = kv["turn_cap"]
    if cap is None:
        return ""
    return f"<br><span class={'waits' if kv['running_turns'] >= cap else 'dim'}>{cap} turns at once</span>"


def _tokens(count: int) -> str:
    return f"{count:,}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"
