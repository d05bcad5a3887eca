#!/usr/bin/env bash
# Install the Claude Code command once. Prints the path of its executable.
#
#   TIDEGATE_REAL_CLAUDE   a folder with such an install already in it (node_modules/); nothing is installed then
#   TIDEGATE_REAL_DIR      where real engines and clients are kept (default: the user's cache folder, tidegate/)
#   CLAUDE_CODE_VERSION    which version (default: whatever is newest on the day of the install)
#
# About 240 MB. Needs npm, with whatever registry it is set up for.
set -euo pipefail

cache=${TIDEGATE_REAL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}
dir=${TIDEGATE_REAL_CLAUDE:-$cache/claude-code}
say() { echo "setup-claude: $*" >&2; }
die() { say "$*"; exit 1; }

# The executable itself, not npm's launcher: it then needs no node, and no file that npm links.
executable() {
  local candidate
  for candidate in "$dir"/node_modules/@anthropic-ai/claude-code-*/claude "$dir"/node_modules/.bin/claude; do
    if [ -x "$candidate" ] && "$candidate" --version >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

if ! found=$(executable); then
  [ -z "${TIDEGATE_REAL_CLAUDE:-}" ] || die "TIDEGATE_REAL_CLAUDE=$dir holds no Claude Code that starts"
  command -v npm >/dev/null || die "needs npm"
  say "installing Claude Code into $dir (240 MB) ..."
  mkdir -p "$dir"
  [ -f "$dir/package.json" ] || echo '{"private": true}' > "$dir/package.json"
  npm install --prefix "$dir" --no-audit --no-fund --loglevel=error \
    "@anthropic-ai/claude-code@${CLAUDE_CODE_VERSION:-latest}" >&2
  found=$(executable) || die "Claude Code was installed but does not start"
fi
say "ready: $("$found" --version)"
echo "$found"
