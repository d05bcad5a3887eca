#!/usr/bin/env bash
# Let 12 agents work before two real vLLMs on this CPU by way of `tidegate serve`, of round robin and of vllm-router with
# two of its policies (twelve minutes; half of it is for the others). Installs both the first time (see setup-vllm.sh and
# setup-vllm-router.sh).
#
#   WAYS   those to try beside tidegate: round-robin cache_aware consistent_hash (default: all)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-routing: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
router=$("$here/setup-vllm-router.sh") || router=""
cd "$root"
# shellcheck disable=SC2086 # several words
exec .venv/bin/python -m tests.real.run_routing "$install" "$router" ${WAYS:-}
