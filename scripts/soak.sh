#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Simulates with fresh seeds and random fault plans until time is up, and leaves a report.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'USAGE'
Usage: scripts/soak.sh [MINUTES] [--seed N] [--jobs N] [--help]

Builds `gimlet` of the emulator preset if needed, then runs `gimlet sim --minutes` over all scenarios, one
process a core. MINUTES is 10 if not given. A failure prints the command that replays it.

  --seed N   first seed; drawn from the clock if not given
  --jobs N   processes (number of cores)

The report is build/soak/report.md. Exit 0 if something ran and nothing failed.
USAGE
}

minutes=10 jobs="$(nproc)" seed="$(date +%s)"
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --seed | --jobs)
            [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || { echo "soak: $1 needs a number from 1" >&2; exit 2; }
            if [ "$1" = --seed ]; then seed="$2"; else jobs="$2"; fi
            shift ;;
        *)
            [[ "$1" =~ ^[0-9]+([.][0-9]+)?$ ]] || {
                echo "soak: '$1' is no number of minutes" >&2
                usage >&2
                exit 2
            }
            minutes="$1" ;;
    esac
    shift
done

program=build/emulator/runtime/cli/gimlet
folder=build/soak
mkdir -p "$folder"
rm -f "$folder"/*.md "$folder"/*.log
if ! { cmake --preset emulator && cmake --build --preset emulator --target gimlet_cli; } >"$folder/build.log" 2>&1; then
    tail -n 30 "$folder/build.log" >&2
    echo "soak: the build failed (above)" >&2
    exit 1
fi

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
for ((job = 0; job < jobs; job++)); do
    # Far enough apart that no two processes walk the same seeds.
    "$program" sim --minutes "$minutes" --seed $((seed + job * 100000000)) \
        --report "$folder/part-$job.md" >"$folder/job-$job.log" 2>&1 &
    pids+=($!)
done
echo "soak: $jobs processes, $minutes minutes, seeds from $seed"
running=yes
while [ "$running" = yes ]; do
    sleep 5
    running=no
    for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null && running=yes; done
    tail -q -n 1 "$folder"/job-*.log | sed 's/^/  /'
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
pids=()
cat "$folder"/part-*.md >"$folder/report.md"
grep -h -A3 '^FAILED' "$folder"/job-*.log || true
echo "soak: report in $folder/report.md"
exit "$status"
