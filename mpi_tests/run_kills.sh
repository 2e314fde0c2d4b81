#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills one process of an mpirun job at each phase of a step; the others must name it in time, exclude it, and work on.
# Then in the calls on the host: creation, close, recover, and a second process in exclude; once through the C ABI,
# once a process ends by exit() with everything alive, and once the others wait without a deadline, give up and end.
# Last line: "N passed, N failed, N skipped".
#
#   mpi_tests/run_kills.sh [BUILD_DIR] [--size 4] [--quick]
#
# --quick: three moments instead of all. On the emulator once as one LSA team, once over GIN and, with 4 processes or
# more, once in hybrid mode with two teams; on GPUs as the machine is.
set -u -o pipefail
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/emulator
size=4
quick=0
while (($#)); do
  case $1 in
    --size) shift; size=${1:?--size needs a number} ;;
    --quick) quick=1 ;;
    -h | --help) sed -n '3,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "run_kills.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    *) build=$1 ;;
  esac
  shift
done
((size >= 2)) || { echo "run_kills.sh: --size $size: at least 2" >&2; exit 2; }

program=$build/mpi_tests/kill/gimlet_kill_case
program_in_c=$build/mpi_tests/kill/gimlet_kill_capi
if [[ ! -x $program ]]; then
  echo "run_kills.sh: $program is not there; build it first: cmake --build --preset emulator" >&2
  exit 2
fi
# A lost process must not end the job: the others are the test.
launch=(mpirun --oversubscribe --bind-to none --enable-recovery)
((EUID == 0)) && launch+=(--allow-run-as-root)

passed=0 failed=0
flags=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# one_kill NAME VICTIM MOMENT AFTER_US [ENVIRONMENT...]
one_kill() {
  local name=$1 victim=$2 moment=$3 after=$4
  shift 4
  local left=$((size - 1)) command=("$program" --victim "$victim" --moment "$moment" --after-us "$after")
  [[ $moment == in-exclude ]] && left=$((size - 2))
  [[ $moment == from-C ]] && command=("$program_in_c" "$victim")
  local start=$SECONDS survivors
  env "$@" timeout 60 "${launch[@]}" -n "$size" "${command[@]}" "${flags[@]}" > "$log" 2>&1 < /dev/null
  # Some process has not ended by itself.
  (($? == 124)) && echo 'FAILED: not done after 60 s' >> "$log"
  survivors=$(grep -c '^survived: ' "$log")
  if ((survivors == left)) && ! grep -q '^FAILED' "$log"; then
    ((passed += 1))
    printf 'passed  rank %s killed %s, %s us, %s: %s s\n' "$victim" "$moment" "$after" "$name" $((SECONDS - start))
  else
    ((failed += 1))
    printf 'FAILED  rank %s killed %s, %s us, %s: %s of %s survived\n' "$victim" "$moment" "$after" "$name" \
      "$survivors" "$left"
    head -n 20 "$log" | sed 's/^/  /'
  fi
}

moments=("before-dispatch 0" "in-dispatch 0" "in-dispatch 2000" "before-combine 0" "in-combine 0" "in-combine 2000"
         "in-barrier 0")
((quick)) && moments=("in-dispatch 500" "before-combine 0" "in-barrier 0")

# Calls on the host have the bootstrap's deadline. A new life has one rank less: NCCL chooses its teams.
host_kills() {
  local name=$1
  shift
  set -- "$@" GIMLET_BOOTSTRAP_TIMEOUT_MS=3000 GIMLET_TIMEOUT_MS=3000
  one_kill "$name" $((size - 1)) in-recover 20000 "$@"
  ((size >= 3)) && one_kill "$name" 0 in-exclude 1000 "$@"
  one_kill "$name" 1 from-C 0 "$@"
  one_kill "$name" 1 at-exit 0 "$@"
  one_kill "$name" 1 no-deadline 0 "$@"
  one_kill "$name" 0 in-life 3000 "$@" NCCL_LSA_TEAM_SIZE=0
  ((quick)) || one_kill "$name" 1 in-life 100000 "$@" NCCL_LSA_TEAM_SIZE=0
}

all_kills() {
  local name=$1 index=0 moment
  shift
  for moment in "${moments[@]}"; do
    local victim=$((index % 2 ? 0 : size - 1))
    ((index += 1))
    # shellcheck disable=SC2086
    one_kill "$name" "$victim" $moment "$@"
  done
}

if grep -q '^GIMLET_BACKEND:STRING=emulator' "$build/CMakeCache.txt" 2> /dev/null; then
  all_kills "one LSA team" NCCL_LSA_TEAM_SIZE="$size" GIMLET_EMU_GIN=off
  all_kills "no LSA, GIN gdaki" NCCL_LSA_TEAM_SIZE=1 GIMLET_EMU_GIN=gdaki
  if ((size >= 4 && size % 2 == 0)); then
    flags=(--hybrid)
    all_kills "two LSA teams, hybrid" NCCL_LSA_TEAM_SIZE=$((size / 2)) GIMLET_EMU_GIN=gdaki
    flags=()
  fi
  host_kills "on the host" NCCL_LSA_TEAM_SIZE=0 GIMLET_EMU_GIN=off
else
  all_kills "as the machine is"
fi
echo "$passed passed, $failed failed, 0 skipped"
((failed == 0 && passed > 0))
