#!/usr/bin/env bash
# Try `tidegate serve` in front of a real vLLM on this CPU, in two halves: the conformance cases, and 24 agents with and
# without the proxy (nine minutes). Installs vLLM the first time (see setup-vllm.sh).
#
#   HALF   both (default), conformance or agents
#
# Arguments go to pytest, and then the default is the first half: tests/real/test-vllm.sh -k golden -x
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
half=${HALF:-both}
[ $# -eq 0 ] || half=${HALF:-conformance}
[ -x "$root/.venv/bin/python" ] || { echo "test-vllm: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
cd "$root"
exec .venv/bin/python -m tests.real.run_vllm "$install" "$half" "$@"
