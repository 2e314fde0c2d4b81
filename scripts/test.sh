#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and tests everything that this machine can test. The last line is "N passed, N failed, N skipped".
# Exit 0 only if something ran and nothing failed.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
readonly all_steps=(format includes scripts build unit fuzz mpi demo bench examples package asan tsan cuda)
readonly quick_steps=(format includes scripts build unit)

usage() {
    cat <<USAGE
Usage: scripts/test.sh [--quick] [--only NAME]... [--help]

  --quick      ${quick_steps[*]}
  --only NAME  one step, or one test program such as gimlet_unit_tests; may be repeated
  --help       show this text

Steps, in order:
  format    .clang-format on every source (needs clang-format 14)
  includes  include directions and room rules
  scripts   the scripts' own tests
  build     the emulator preset
  unit      every Catch2 program of the emulator preset
  fuzz      the fuzz targets over their corpora
  mpi       the cases under mpirun
  demo      the README's demo
  bench     gimlet bench, small, on the emulator: lines, refusals
  examples  the programs of mpi_tests/examples
  package   install, then build users' programs in C++ and C with find_package and with pkg-config
  asan      tests tagged [sanitize] under AddressSanitizer and UndefinedBehaviorSanitizer
  tsan      tests tagged [sanitize] under ThreadSanitizer
  cuda      compile and link with nvcc, unoptimised: the cuda-check preset (needs nvcc)

Environment: GIMLET_TEST_JOBS (cores), GIMLET_TEST_TIMEOUT_S (limit of one group of tests: 900).
Logs are kept in build/test-logs.
USAGE
}

only=()
steps=("${all_steps[@]}")
while [ $# -gt 0 ]; do
    case "$1" in
        --quick) steps=("${quick_steps[@]}") ;;
        --only)
            [ $# -ge 2 ] || { echo "test: --only needs a NAME" >&2; exit 2; }
            only+=("$2"); shift ;;
        -h | --help) usage; exit 0 ;;
        *) echo "test: unknown option '$1'" >&2; usage >&2; exit 2 ;;
    esac
    shift
done

readonly jobs="${GIMLET_TEST_JOBS:-$(nproc)}"
readonly timeout_s="${GIMLET_TEST_TIMEOUT_S:-900}"
readonly logs=build/test-logs
rm -rf "$logs"
mkdir -p "$logs"

# A fresh clone in another folder may use what an earlier one compiled. Debug information then names the
# earlier folder, which only matters to people.
if [ "${CI:-}" = true ]; then
    export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1
fi

passed=0 failed=0 skipped=0
failures=() skips=()

progress() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

# count LABEL PASSED FAILED SKIPPED
count() {
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
    [ "$3" -eq 0 ] || failures+=("$1")
    [ "$4" -eq 0 ] || skips+=("$1")
    progress "$1: $2 passed, $3 failed, $4 skipped"
}

skip() { # LABEL REASON
    skipped=$((skipped + 1))
    skips+=("$1: $2")
    progress "$1: skipped ($2)"
}

show_tail() { # LOG: the end of a failed log, errors first if it is a build
    grep -nE -A4 'error:|CMake Error|FAILED:|undefined reference' "$1" | head -n 60
    echo "--- end of $1 ---"
    tail -n 40 "$1"
}

# check LABEL LOG COMMAND...: one test that passes if COMMAND does; exit code 77 means skipped.
check() {
    local label="$1" log="$logs/$2" status
    shift 2
    timeout -k 10 "$timeout_s" "$@" >"$log" 2>&1
    status=$?
    if [ "$status" -eq 0 ]; then
        count "$label" 1 0 0
    elif [ "$status" -eq 77 ]; then
        skip "$label" "$(tail -n 1 "$log")"
    else
        show_tail "$log"
        count "$label (exit $status)" 0 1 0
        return 1
    fi
}

# --- steps ---------------------------------------------------------------------------------------------

step_format() { check format format.log bash scripts/check_format.sh; }

step_includes() { check includes includes.log python3 scripts/check_includes.py; }

step_scripts() {
    local log="$logs/scripts.log" ran bad
    timeout -k 10 "$timeout_s" python3 tests/contract/scripts_test.py >"$log" 2>&1
    local status=$?
    ran="$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} in.*/\1/p' "$log")"
    bad="$(grep -cE '^(FAIL|ERROR): ' "$log")"
    if [ -z "$ran" ] || { [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; }; then
        show_tail "$log"
        count scripts 0 1 0
        return
    fi
    [ "$bad" -eq 0 ] || show_tail "$log"
    [ "$bad" -le "$ran" ] || bad="$ran"
    count scripts $((ran - bad)) "$bad" 0
}

# build PRESET LOG [TARGET...]
build() {
    local preset="$1" log="$logs/$2"
    shift 2
    progress "building the $preset preset"
    local targets=()
    [ $# -eq 0 ] || targets=(--target "$@")
    cmake --preset "$preset" >"$log" 2>&1 &&
        cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" >>"$log" 2>&1 && return 0
    show_tail "$log"
    return 1
}

emulator_built=unknown
ensure_emulator() {
    if [ "$emulator_built" = unknown ]; then
        if build emulator build-emulator.log; then emulator_built=yes; else emulator_built=no; fi
    fi
    [ "$emulator_built" = yes ]
}

step_build() {
    if ensure_emulator; then count "build emulator" 1 0 0; else count "build emulator" 0 1 0; fi
}

# list_tests PROGRAM FILTER: names of its tests that are not hidden, one a line, escaped for --input-file
# (Catch2 splits at a comma even inside a quoted name)
list_tests() {
    if [ "$(cat "$build_dir/test_catch2_major")" -ge 3 ]; then
        "$1" --list-tests --verbosity quiet "$2~[.]"
    else
        "$1" --list-test-names-only "$2~[.]"
    fi | grep -v '^[[:space:]]*$' | sed 's/[\\,"]/\\&/g'
}

# run_group PROGRAM NAMES LOG: the tests named in the file NAMES; the exit status goes to LOG.status
run_group() {
    # ThreadSanitizer of GCC 12 cannot place its shadow on kernels with wide address randomisation.
    local prefix=()
    case "$build_dir" in *tsan) setarch "$(uname -m)" -R true 2>/dev/null &&
        prefix=(setarch "$(uname -m)" -R) ;; esac
    timeout -k 10 "$timeout_s" "${prefix[@]}" "$1" --input-file "$2" >"$3" 2>&1
    echo $? >"$3.status"
}

# count_group LABEL NAMES LOG
count_group() {
    local label="$1" log="$3" want status ok bad off lost
    want="$(wc -l <"$2")"
    status="$(cat "$log.status")"
    read -r ok bad off < <(awk -f scripts/catch_summary.awk "$log") || { ok=0 bad=0 off=0; }
    lost=$((want - ok - bad - off))
    if [ "$lost" -ne 0 ]; then
        # Crashed, stopped by the time limit, or not found again under its name: never a success.
        [ "$status" -eq 124 ] && echo "test: $label: stopped after $timeout_s s"
        [ "$lost" -gt 0 ] || lost=1
        bad=$((bad + lost))
        label="$label ($lost not finished, exit $status)"
    elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] && [ "$ok" -gt 0 ]; then
        bad=1
        label="$label (exit $status)"
    fi
    [ "$bad" -eq 0 ] || show_tail "$log"
    count "$label" "$ok" "$bad" "$off"
}

# run_program LABEL NAME PROGRAM FILTER: its tests, in groups that run side by side; 1 if it has none
run_program() {
    local label="$1" base="$logs/$1-$2" program="$3" filter="$4" total groups i
    label="$label $2"
    list_tests "$program" "$filter" >"$base.names"
    total="$(wc -l <"$base.names")"
    [ "$total" -gt 0 ] || return 1
    groups=$((jobs * 3))
    [ "$groups" -le "$total" ] || groups="$total"
    for ((i = 0; i < groups; i++)); do
        awk -v n="$groups" -v i="$i" 'NR % n == i' "$base.names" >"$base.$i.names"
    done
    for ((i = 0; i < groups; i++)); do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        run_group "$program" "$base.$i.names" "$base.$i.log" &
    done
    wait
    for ((i = 0; i < groups; i++)); do
        count_group "$label $((i + 1))/$groups" "$base.$i.names" "$base.$i.log"
    done
    return 0
}

build_dir=build/emulator
step_unit() {
    local wanted="${1:-}" name program folder found=no
    ensure_emulator || return
    build_dir=build/emulator
    while read -r name program folder; do
        [ -z "$wanted" ] || [ "$wanted" = "$name" ] || continue
        found=yes
        run_program emulator "$name" "$program" "" || count "$name (no test found)" 0 1 0
    done <"$build_dir/test_binaries.txt"
    [ "$found" = yes ] || count "unit ${wanted:-(no test program)}" 0 1 0
}

step_mpi() {
    if ! command -v mpirun >/dev/null; then
        skip mpi "mpirun not found; scripts/install_deps.sh installs Open MPI"
        return
    fi
    ensure_emulator || return
    if [ ! -f mpi_tests/run_cases.sh ]; then
        count "mpi (mpi_tests/run_cases.sh is missing)" 0 1 0
        return
    fi
    local log="$logs/mpi.log" line status
    # Waiting ranks must not starve the others where there are more ranks than cores.
    export OMPI_MCA_mpi_yield_when_idle=1
    timeout -k 10 "$timeout_s" bash mpi_tests/run_cases.sh build/emulator 2>&1 </dev/null | tee "$log"
    status="${PIPESTATUS[0]}"
    line="$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)"
    if [ -z "$line" ]; then
        count "mpi (no closing line, exit $status)" 0 1 0
        return
    fi
    read -r ok _ bad _ off _ <<<"$line"
    [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ $((ok + bad)) -gt 0 ] || bad=1
    count mpi "$ok" "$bad" "$off"
    check "mpi, a rank killed" kills.log bash mpi_tests/run_kills.sh build/emulator --quick
}

step_demo() {
    if ! command -v mpirun >/dev/null; then
        skip demo "mpirun not found; scripts/install_deps.sh installs Open MPI"
        return
    fi
    ensure_emulator || return
    check demo demo.log bash scripts/demo.sh
}

# run_ctest LABEL: the tests of the emulator preset whose names start with LABEL_
run_ctest() {
    ensure_emulator || return
    local log="$logs/$1.log" ran bad off
    timeout -k 10 "$timeout_s" ctest --test-dir build/emulator --output-on-failure -R "^$1_" >"$log" 2>&1
    ran="$(grep -cE '^ *[0-9]+/[0-9]+ Test ' "$log")"
    off="$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*Skipped' "$log")"
    bad=$((ran - off - $(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed ' "$log")))
    if [ "$ran" -eq 0 ]; then
        show_tail "$log"
        count "$1 (nothing ran)" 0 1 0
        return
    fi
    [ "$bad" -eq 0 ] || show_tail "$log"
    count "$1" $((ran - bad - off)) "$bad" "$off"
}

step_fuzz() { run_ctest fuzz; }

step_bench() { run_ctest bench; }

step_examples() { run_ctest example; }

step_package() {
    ensure_emulator || return
    check package package.log bash tests/contract/package_test.sh build/emulator
}

# sanitizer PRESET: builds only the programs that have a [sanitize] test, and runs those tests
sanitizer() {
    local preset="$1" name program folder programs=() targets=() ran=no
    build_dir="build/$preset"
    if ! cmake --preset "$preset" >"$logs/configure-$preset.log" 2>&1; then
        show_tail "$logs/configure-$preset.log"
        count "configure $preset" 0 1 0
        return
    fi
    while read -r name program folder; do
        grep -rqF '[sanitize]' "$folder" || continue
        targets+=("$name")
        programs+=("$name $program")
    done <"$build_dir/test_binaries.txt"
    if [ "${#targets[@]}" -gt 0 ] && ! build "$preset" "build-$preset.log" "${targets[@]}"; then
        count "build $preset" 0 1 0
        return
    fi
    for program in "${programs[@]}"; do
        # A folder may hold programs without the tag beside one that has it.
        # shellcheck disable=SC2086  # name and path are two words
        run_program "$preset" $program "[sanitize]" && ran=yes
    done
    [ "$ran" = yes ] || count "$preset (no test is tagged [sanitize])" 0 1 0
}

step_asan() {
    export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
    sanitizer emulator-asan
}

step_tsan() {
    export TSAN_OPTIONS="${TSAN_OPTIONS:-second_deadlock_stack=1}"
    sanitizer emulator-tsan
}

step_cuda() {
    if ! command -v nvcc >/dev/null; then
        skip cuda "nvcc not found; the cuda preset needs the CUDA 13 toolkit on PATH"
        return
    fi
    if build cuda-check build-cuda.log; then count "build cuda" 1 0 0; else count "build cuda" 0 1 0; fi
}

# --- main ----------------------------------------------------------------------------------------------

for tool in cmake ninja c++ python3; do
    command -v "$tool" >/dev/null && continue
    echo "test: '$tool' not found; run scripts/install_deps.sh" >&2
    exit 1
done

if [ "${#only[@]}" -gt 0 ]; then
    for name in "${only[@]}"; do
        case " ${all_steps[*]} " in
            *" $name "*) "step_$name" ;;
            *) step_unit "$name" ;;
        esac
    done
else
    for step in "${steps[@]}"; do "step_$step"; done
fi

[ "${#skips[@]}" -eq 0 ] || printf 'skipped: %s\n' "${skips[@]}"
[ "${#failures[@]}" -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
if [ "$emulator_built" = no ] && [ "$failed" -eq 0 ]; then
    failures+=(build) failed=1
fi
if [ $((passed + failed)) -eq 0 ]; then
    echo "test: nothing ran" >&2
fi
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
