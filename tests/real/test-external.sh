#!/usr/bin/env bash
# Let prefixes come back from outside a real vLLM's cache on this CPU, through `tidegate serve`: from a folder of files,
# by vLLM's own connector, and from a real LMCache (three minutes). Installs both the first time (see setup-vllm.sh and
# setup-lmcache.sh).
#
#   TIERS   those to try: example lmcache (default: both)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-external: run 'make setup' first" >&2; exit 1; }
install=$("$here/setup-vllm.sh")
lmcache=""
[ "${TIERS:-}" = example ] || lmcache=$("$here/setup-lmcache.sh" "$install") || lmcache=""
cd "$root"
# shellcheck disable=SC2086 # several words
exec .venv/bin/python -m tests.real.run_external "$install" "$lmcache" ${TIERS:-}
