#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the emulator preset if needed and runs `gimlet demo` on 8 ranks in two LSA teams of 4.
# Installs nothing. Options go to the demo: scripts/demo.sh --help-demo lists them.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/mpi_env.sh
ranks="${GIMLET_DEMO_RANKS:-8}"
export NCCL_LSA_TEAM_SIZE="${NCCL_LSA_TEAM_SIZE:-4}"
program=build/emulator/runtime/cli/gimlet

case "${1:-}" in
    -h | --help)
        cat <<'USAGE'
Usage: scripts/demo.sh [options of `gimlet demo`]

Builds build/emulator if needed, then runs `gimlet demo` under mpirun.
  --help-demo           show the options of `gimlet demo`
  GIMLET_DEMO_RANKS=N   number of ranks (8)
  NCCL_LSA_TEAM_SIZE=N  ranks per LSA team (4)
USAGE
        exit 0 ;;
    --help-demo) set -- --help; ranks=1 ;;
esac

missing=()
for tool in c++ cmake ninja mpirun; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
if [ "${#missing[@]}" -gt 0 ]; then
    echo "demo: not found: ${missing[*]}. Run scripts/install_deps.sh once; it installs what is missing." >&2
    exit 1
fi

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
[ -x "$program" ] || echo "demo: building the emulator preset; the first time takes some minutes" >&2
if ! { cmake --preset emulator && cmake --build --preset emulator --target gimlet_cli; } >"$log" 2>&1; then
    grep -E -A8 'CMake Error|error:|FAILED' "$log" | head -n 40 >&2 || true
    echo "demo: the build failed (above). If a package was not found, run scripts/install_deps.sh." >&2
    exit 1
fi
gimlet_mpirun "$ranks" "$program" demo "$@"
