#!/usr/bin/env bash
# Run real clients through `tidegate serve` in front of a scripted engine, and judge what they print and what they ask.
# Installs them the first time (see setup-claude.sh and setup-clients.sh). Some ten minutes; no model is needed.
#
#   ONLY                   words; only scenarios whose title ("codex: one plain turn") has one of them
#   TIDEGATE_REAL_CLAUDE   see setup-claude.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -x "$root/.venv/bin/python" ] || { echo "test-clients: run 'make setup' first" >&2; exit 1; }
"$here/setup-clients.sh"
claude=$(CLAUDE_CODE_VERSION=${CLAUDE_CODE_VERSION:-2.1.197} "$here/setup-claude.sh")
cd "$root"
read -ra words <<< "${ONLY:-}"
exec .venv/bin/python -m tests.real.run_clients "$claude" "${words[@]}"
