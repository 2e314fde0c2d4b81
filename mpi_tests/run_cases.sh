#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs gimlet_mpi_cases under mpirun for several numbers of processes, LSA team sizes and GIN backends, and adds up
# what they say. Last line: "N passed, N failed, N skipped". Exit code 0 = something passed and nothing failed.
#
#   mpi_tests/run_cases.sh [BUILD_DIR] [--quick] [--only NAME]... [--sizes "2 4 8"] [--verbose]
#
# On the emulator the teams and the backend are chosen by NCCL_LSA_TEAM_SIZE and GIMLET_EMU_GIN. On real GPUs
# (GIMLET_BACKEND=cuda builds) they are what the machine has: one run a size, the environment untouched.
set -u -o pipefail
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/emulator
quick=""
only=()
sizes="2 4 8"
verbose=0
while (($#)); do
  case $1 in
    --quick) quick=--quick ;;
    --only) shift; only+=(--only "${1:?--only needs a name}") ;;
    --sizes) shift; sizes=${1:?--sizes needs a list} ;;
    --verbose) verbose=1 ;;
    -h | --help) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "run_cases.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
    *) build=$1 ;;
  esac
  shift
done

program=$build/mpi_tests/gimlet_mpi_cases
if [[ ! -x $program ]]; then
  echo "run_cases.sh: $program is not there; build it first: cmake --build --preset emulator" >&2
  exit 2
fi
if ! command -v mpirun > /dev/null; then
  echo "run_cases.sh: mpirun is not there; scripts/install_deps.sh installs Open MPI" >&2
  exit 2
fi

launch=(mpirun --oversubscribe --bind-to none)
# Open MPI asks before it runs as root, as in a container.
((EUID == 0)) && launch+=(--allow-run-as-root)

passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# one_run NAME PROCESSES [ENVIRONMENT...] -- [ARGUMENT...]
one_run() {
  local name=$1 processes=$2
  shift 2
  local settings=()
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  local start=$SECONDS status=0
  env "${settings[@]}" timeout 300 "${launch[@]}" -n "$processes" "$program" "$@" "${only[@]}" \
    > "$log" 2>&1 < /dev/null || status=$?
  local line
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
  if [[ -z $line ]]; then line="0 passed, 1 failed, 0 skipped"; fi
  local numbers
  read -r -a numbers <<< "${line//[!0-9 ]/}"
  ((passed += numbers[0], failed += numbers[1], skipped += numbers[2]))
  # A run that ends badly without a failed case is a failure of its own.
  if ((status != 0 && numbers[1] == 0)); then ((failed += 1)); fi
  printf '%-46s %4d passed %3d failed %3d skipped %4d s\n' "$name" "${numbers[@]}" $((SECONDS - start))
  if ((status != 0)); then
    printf '  exit code %d; to see it again: %s %s\n' "$status" "${settings[*]}" \
      "${launch[*]} -n $processes $program $* ${only[*]}"
    grep -v '^passed\|^skipped' "$log" | head -n 40 | sed 's/^/  /'
  elif ((verbose)); then
    sed 's/^/  /' "$log"
  fi
}

emulated() {
  "$program" --list > /dev/null && grep -q '^GIMLET_BACKEND:STRING=emulator' "$build/CMakeCache.txt"
}

if emulated; then
  for size in $sizes; do
    half=$((size / 2))
    one_run "$size processes, one LSA team, no GIN" "$size" NCCL_LSA_TEAM_SIZE="$size" GIMLET_EMU_GIN=off -- --quick
    if ((half > 1)); then
      one_run "$size processes, LSA teams of $half, GIN gdaki" "$size" \
        NCCL_LSA_TEAM_SIZE="$half" GIMLET_EMU_GIN=gdaki -- --quick
    fi
    if ((half > 2 && ${#only[@]} == 0)); then
      one_run "$size processes, LSA teams of 2, GIN gdaki, rails" "$size" \
        NCCL_LSA_TEAM_SIZE=2 GIMLET_EMU_GIN=gdaki -- --quick --only hybrid
    fi
    if ((size < 8)); then
      # The long repetitions once, where the processes do not outnumber the cores.
      effort=--quick
      ((size == 2)) && effort=$quick
      one_run "$size processes, no LSA, GIN gdaki" "$size" NCCL_LSA_TEAM_SIZE=1 GIMLET_EMU_GIN=gdaki -- $effort
    fi
    one_run "$size processes, no LSA, GIN proxy" "$size" NCCL_LSA_TEAM_SIZE=1 GIMLET_EMU_GIN=proxy -- --quick
  done
else
  for size in $sizes; do one_run "$size processes" "$size" -- $quick; done
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0 && passed > 0))
