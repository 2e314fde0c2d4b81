#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the mpirun cases on real NCCL, on however many GPUs this machine has. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'USAGE'
Usage: scripts/gpu_test.sh [options]

Runs the mpirun cases of a cuda build for 1, 2, 4 and 8 ranks, spread over the GPUs in turn, with LSA
teams of all, a half and a quarter of the ranks. Starts MPS in a folder of its own when ranks outnumber
GPUs, and stops it at the end. Teams smaller than all need GIN; without it those runs count as skipped.
The last line reads: N passed, N failed, N skipped.

  --build DIR     a cuda build tree (build/cuda); built with the cuda preset if it is missing
  --ranks LIST    numbers of ranks (1,2,4,8)
  --only TEXT     cases whose name contains TEXT
  --quick         fewer repetitions
  --seconds N     deadline of one run (300); a hang is a failure with the ranks' last reports
  --rma           GIN through the RMA plugin of the build, for machines without an RDMA NIC: the teams
                  smaller than all run too
  --logs DIR      where the runs' output is kept (a temporary folder)
  --sanitize TOOL memcheck or racecheck: small cases under compute-sanitizer, an error is a failure.
                  memcheck runs the kernels of a process one after the other, so ranks must be
                  processes; 1 rank unless --ranks says otherwise (racecheck: 1 and 2)
USAGE
}

build=build/cuda ranks='' seconds=300 logs='' sanitize='' rma=no case_options=()
while [ $# -gt 0 ]; do
    case "$1" in
        --build) build="$2"; shift ;;
        --ranks) ranks="$2"; shift ;;
        --only) case_options+=(--only "$2"); shift ;;
        --quick) case_options+=(--quick) ;;
        --seconds) seconds="$2"; shift ;;
        --logs) logs="$2"; shift ;;
        --rma) rma=yes ;;
        --sanitize)
            sanitize="${2:-}"
            case "$sanitize" in
                memcheck) default_ranks=1 ;;
                racecheck) default_ranks=1,2 ;;
                *) echo "gpu_test: --sanitize is memcheck or racecheck, not '$sanitize'" >&2; exit 2 ;;
            esac
            shift ;;
        -h | --help) usage; exit 0 ;;
        *) echo "gpu_test: unknown option $1; see --help" >&2; exit 2 ;;
    esac
    shift
done
ranks="${ranks:-${default_ranks:-1,2,4,8}}"
prefix=()
if [ -n "$sanitize" ]; then
    prefix=(compute-sanitizer --tool "$sanitize" --error-exitcode 86)
    # NCCL asks the driver for what it may not have, and goes on without it.
    [ "$sanitize" != memcheck ] || prefix+=(--report-api-errors no)
    [[ " ${case_options[*]} " == *" --only "* ]] || case_options+=(--only steps/)
    case_options+=(--quick)
fi
# The ranks of a case that hangs say what they wait for before the run itself is ended.
case_seconds=$((seconds > 20 ? seconds - 15 : seconds * 2 / 3 + 1))
[ -n "$logs" ] || logs="$(mktemp -d)"
mkdir -p "$logs"

passed=0 failed=0 skipped=0
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

gpus="$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c '^[0-9]' || true)"
# nvidia-smi lists what programs are not shown, too.
if [ "${gpus:-0}" != 0 ] && [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    gpus="$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)"
fi
if [ "${gpus:-0}" = 0 ]; then
    echo "gpu_test: no GPU here (nvidia-smi lists none): every run is skipped"
    for size in ${ranks//,/ }; do skipped=$((skipped + 1)); done
    finish
    exit
fi

if [ -n "$sanitize" ] && ! command -v compute-sanitizer >/dev/null; then
    echo "gpu_test: compute-sanitizer is not on PATH (it comes with the CUDA toolkit)"
    failed=1
    finish
    exit 1
fi

if [ ! -x "$build/mpi_tests/gimlet_mpi_cases" ]; then
    echo "gpu_test: building $build (some minutes)"
    if ! { cmake --preset cuda -B "$build" && cmake --build "$build"; } >"$logs/build.log" 2>&1; then
        tail -n 40 "$logs/build.log"
        echo "gpu_test: the cuda preset does not build; scripts/install_deps.sh brings NCCL, nvcc must be on PATH"
        failed=1
        finish
        exit 1
    fi
fi
cases="$build/mpi_tests/gimlet_mpi_cases"

# Several processes share a GPU only under MPS; else barriers are time-sliced. More hardware queues than the
# default a process are more than MPS has for eight of them.
unset CUDA_DEVICE_MAX_CONNECTIONS
export NCCL_NVLS_ENABLE=0 NCCL_MULTI_RANK_GPU_ENABLE=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
if [ "$rma" = yes ]; then
    plugin="$(find "$build" -name libnccl-rma-gimlet.so -print -quit)"
    if [ -z "$plugin" ]; then
        echo "gpu_test: --rma: no libnccl-rma-gimlet.so in $build; cmake --build --preset cuda makes it"
        failed=1
        finish
        exit 1
    fi
    # host/rma_plugin/README.md says what these are for.
    NCCL_RMA_PLUGIN="$(realpath "$plugin")"
    export NCCL_RMA_PLUGIN NCCL_RMA_PLUGIN_REF_COUNT=1 NCCL_GIN_TYPE=2 NCCL_NUM_RMA_CTX=0 NCCL_MAX_CTAS=4
fi
mps=''
# Programs that find the variables of a daemon that is gone would wait for it.
forget_mps() {
    rm -rf "$mps"
    mps=''
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
start_mps() {
    mps="$(mktemp -d)"
    export CUDA_MPS_PIPE_DIRECTORY="$mps/pipe" CUDA_MPS_LOG_DIRECTORY="$mps/log"
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d || {
        echo "gpu_test: MPS did not start; another control daemon may have been left behind by an earlier run"
        forget_mps
    }
}
stop_mps() {
    [ -n "$mps" ] || return 0
    echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1 || true
    forget_mps
}
trap stop_mps EXIT

# one_run RANKS TEAM
one_run() {
    local size="$1" team="$2" log line status=0
    log="$logs/ranks$1-team$2.log"
    # One team of all is what NCCL makes by itself; cases with ranks as threads have worlds of their own.
    local team_size=0
    [ "$team" = "$size" ] || team_size="$team"
    NCCL_LSA_TEAM_SIZE="$team_size" timeout -k 10 "$seconds" mpirun --oversubscribe --bind-to none -n "$size" \
        "${prefix[@]}" "$cases" --deadline "$case_seconds" "${case_options[@]}" >"$log" 2>&1 </dev/null || status=$?
    # Without GIN a world of several teams has no symmetric memory at all: no case gets to its start.
    if [ "$team" -lt "$size" ] && ! grep -q '^[1-9][0-9]* passed' "$log" &&
        grep -qE 'NCCL offers none|several LSA teams' "$log"; then
        printf '%d ranks, LSA teams of %d: skipped, NCCL offers no GIN here (gimlet doctor says why)\n' "$size" "$team"
        skipped=$((skipped + 1))
        return
    fi
    line="$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1 || true)"
    [ -n "$line" ] || line='0 passed, 1 failed, 0 skipped'
    local numbers
    read -r -a numbers <<<"${line//[!0-9 ]/}"
    [ "$status" = 0 ] || [ "${numbers[1]}" != 0 ] || numbers[1]=1
    passed=$((passed + numbers[0])) failed=$((failed + numbers[1])) skipped=$((skipped + numbers[2]))
    printf '%d ranks, LSA teams of %d: %d passed, %d failed, %d skipped\n' "$size" "$team" "${numbers[@]}"
    if [ "${numbers[1]}" != 0 ]; then
        [ -z "$sanitize" ] || grep -E '^=+ (Error|ERROR|Invalid|Race)' "$log" | head -n 10 | sed 's/^/  /' || true
        [ "$status" != 124 ] || echo "  ended at the deadline of $seconds s; the ranks' last reports:"
        grep -E '^FAILED|^ +rank [0-9]+: |gimlet error|failed:' "$log" | head -n 20 | cut -c1-300 | sed 's/^/  /' || true
        # After a hang MPS is not to be trusted.
        if [ -n "$mps" ]; then stop_mps; start_mps; fi
    fi
}

for size in ${ranks//,/ }; do
    if [ "$size" -gt "$gpus" ] && [ -z "$mps" ]; then start_mps; fi
    for divisor in 1 2 4; do
        if [ $((size % divisor)) = 0 ] && { [ "$divisor" = 1 ] || [ $((size / divisor)) -ge 1 ]; }; then
            one_run "$size" $((size / divisor))
        fi
    done
done
finish
