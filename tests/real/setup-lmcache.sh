#!/usr/bin/env bash
# Install LMCache beside a real vLLM, once, in a folder of its own: `setup-lmcache.sh INSTALL`, with what setup-vllm.sh
# printed. Prints the folder, which goes into PYTHONPATH.
#
#   TIDEGATE_REAL_LMCACHE  a folder that holds it already; nothing is installed then
#   TIDEGATE_REAL_DIR      where real engines and clients are kept (default: the user's cache folder, tidegate/)
#
# About 100 MB. Needs a Python package index.
set -euo pipefail

version=0.5.6
python=$1/venv/bin/python
cache=${TIDEGATE_REAL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate}
dir=${TIDEGATE_REAL_LMCACHE:-$cache/lmcache-$version}
if [ -z "${TIDEGATE_REAL_LMCACHE:-}" ] && [ ! -e "$dir/complete" ]; then
  echo "setup-lmcache: installing LMCache $version into $dir (100 MB) ..." >&2
  rm -rf "$dir"
  # Without its dependencies, which are for CUDA and would bring another torch: these are all that a CPU lacks. In a
  # folder of its own, so that the engine's environment stays as it is.
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$dir" \
    "lmcache==$version" sortedcontainers==2.4.0 aiofile==3.12.3 caio==0.12.10 aiofiles==25.1.0 nvtx==0.2.17 >&2
  PYTHONPATH=$dir LMCACHE_TRACK_USAGE=false "$python" -c "import lmcache.v1.multiprocess.server" >/dev/null 2>&1 \
    || { echo "setup-lmcache: LMCache was installed but does not start" >&2; exit 1; }
  touch "$dir/complete"
fi
[ -d "$dir/lmcache" ] || { echo "setup-lmcache: $dir holds no lmcache" >&2; exit 1; }
echo "$dir"
