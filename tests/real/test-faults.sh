#!/usr/bin/env bash
# Let agents work through `tidegate serve` on a real vLLM on this CPU while clients leave, the metrics page is gone and
# the engine is killed (five minutes). Installs vLLM the first time (see setup-vllm.sh).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-faults: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
cd "$root"
exec .venv/bin/python -m tests.real.run_faults "$install"
