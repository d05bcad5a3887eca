#!/usr/bin/env bash
# A real Prometheus scrapes the demo while agents work. Needs prometheus and promtool (Debian: apt install prometheus);
# TIDEGATE_PROMETHEUS names a folder that has them. Under a minute; needs no engine.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-prometheus: run 'make setup' first" >&2; exit 1; }
PATH="${TIDEGATE_PROMETHEUS:+$TIDEGATE_PROMETHEUS:}$PATH"
for program in prometheus promtool; do
    command -v "$program" >/dev/null || { echo "test-prometheus: no $program found; apt install prometheus" >&2; exit 1; }
done
cd "$root"
exec .venv/bin/python -m tests.real.run_prometheus
