"""A real Prometheus scrapes the demo while agents work: `python -m tests.real.run_prometheus`.

Whatever docs/metrics.md tells people to ask at 2 a.m. is asked of it. Exit status 0 when the scrapes went well, each
expression is understood, and those that an undisturbed fleet has an answer for have one.
"""

import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.conformance.programs import ROOT, Programs, free_port, say
from tests.conformance.wire import is_answering

_PAGE: Final = ROOT / "docs" / "metrics.md"
_WORDS: Final = re.compile(r"`([^`]*(?:tidegate_|process_)[^`]*)`")
_RANGE: Final = "[5m]"
_SHORT_RANGE: Final = "[20s]"
"""Prometheus has watched for less than a minute."""
_MAY_BE_EMPTY: Final = ('outcome="refused"', "== 0", "> 0")
"""What only a fleet in trouble answers."""
_CONFIG: Final = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: tidegate
    static_configs: [{{targets: ["{address}"]}}]
"""
_START_S: Final = 30.0
_WORK_S: Final = 25


def expressions() -> list[str]:
    """What the page says to look at, in the order of its table."""
    section = _PAGE.read_text(encoding="utf-8").split("\n## At 2 a.m.\n")[1].split("\n## ")[0]
    return [found for line in section.splitlines() if line.startswith("| ") for found in _WORDS.findall(line)]


def asked(url: str, expression: str) -> tuple[str, list[Any]]:
    """Its status and its series, or the words of its refusal."""
    query = urllib.parse.urlencode({"query": expression.replace(_RANGE, _SHORT_RANGE)})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=5) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)["error"], []
    return answer["status"], answer["data"]["result"]


def faults(prometheus_url: str, proxy_url: str) -> Iterator[str]:
    """What is wrong, a line each."""
    status, up = asked(prometheus_url, "min_over_time(up[20s])")
    if (status, [series["value"][1] for series in up]) != ("success", ["1"]):
        yield f"a scrape has failed: {status} {up}"
    for expression in expressions():
        status, series = asked(prometheus_url, expression)
        is_number = all(one["value"][1] != "NaN" for one in series)
        say(f"  {len(series)} series: {expression}")
        if status != "success":
            yield f"not understood: {expression}: {status}"
        elif not series and not any(words in expression for words in _MAY_BE_EMPTY):
            yield f"no answer: {expression}"
        elif not is_number and "/" not in expression:
            yield f"not a number: {expression}"
    with urllib.request.urlopen(f"{proxy_url}/metrics", timeout=5) as response:
        page = response.read()
    lint = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    ours = [line for line in lint.stderr.decode().splitlines() if line.startswith("tidegate_")]
    yield from (f"promtool: {line}" for line in ours)


def main() -> int:
    """Start the demo and Prometheus, let agents work, and ask."""
    proxy_url, prometheus_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with tempfile.TemporaryDirectory(prefix="tidegate-prometheus-") as name, Programs(Path(name)) as programs:
        tidegate = [sys.executable, "-m", "proxy"]
        demo = [*tidegate, "demo", "--port", proxy_url.rpartition(":")[2]]
        programs.start("demo", demo, is_ready=lambda: is_answering(proxy_url, "/readyz"), within_s=_START_S)
        config = Path(name) / "prometheus.yml"
        config.write_text(_CONFIG.format(address=proxy_url.rpartition("/")[2]), encoding="utf-8")
        places = [f"--config.file={config}", f"--storage.tsdb.path={Path(name) / 'data'}"]
        listen = f"--web.listen-address={prometheus_url.rpartition('/')[2]}"
        programs.start(
            "prometheus",
            ["prometheus", *places, listen],
            is_ready=lambda: is_answering(prometheus_url, "/-/ready"),
            within_s=_START_S,
        )
        say(f"agents work for {_WORK_S} s at {proxy_url}")
        agents = ["replay", proxy_url, "--agents", "12", "--scale", "0.1", "--think-scale", "0.2", "--warm-up", "0"]
        subprocess.run([*tidegate, *agents, "--duration", str(_WORK_S)], check=True, stdout=subprocess.DEVNULL)
        found = list(faults(prometheus_url, proxy_url))
    for fault in found:
        say(f"FAILED: {fault}")
    say("a real Prometheus: " + ("ok" if not found else f"{len(found)} faults"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
