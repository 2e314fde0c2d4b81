#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks (or with --fix applies) .clang-format on every C++ and CUDA source.
# Exit 0: clean, 1: files differ, 2: bad usage, 77: no clang-format 14 here, nothing was checked.
set -euo pipefail

wanted_major=14
folders=(device host runtime tests mpi_tests)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=check
case "${1:-}" in
    "") ;;
    --fix) mode=fix ;;
    -h | --help) echo "Usage: scripts/check_format.sh [--fix]"; exit 0 ;;
    *) echo "check_format: unknown option '$1'; the only one is --fix" >&2; exit 2 ;;
esac

# Other major versions lay out the same style differently, so that only this one counts.
formatter=""
for candidate in "${CLANG_FORMAT:-}" "clang-format-$wanted_major" clang-format; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
    if "$candidate" --version | grep -q "version $wanted_major\."; then
        formatter="$candidate"
        break
    fi
done
if [ -z "$formatter" ]; then
    echo "check_format: clang-format $wanted_major not found (apt-get install clang-format-$wanted_major," \
         "or set CLANG_FORMAT)" >&2
    exit 77
fi

existing=()
for folder in "${folders[@]}"; do [ -d "$folder" ] && existing+=("$folder"); done
mapfile -d '' files < <(find "${existing[@]}" -type f \
    \( -name '*.hpp' -o -name '*.h' -o -name '*.cuh' -o -name '*.cc' -o -name '*.cu' -o -name '*.c' \) -print0 | sort -z)
if [ "$mode" = fix ]; then
    "$formatter" -i --style=file "${files[@]}"
    echo "check_format: formatted ${#files[@]} files"
    exit 0
fi

bad=()
for file in "${files[@]}"; do
    "$formatter" --style=file "$file" | cmp -s - "$file" || bad+=("$file")
done
if [ "${#bad[@]}" -gt 0 ]; then
    printf 'check_format: not formatted: %s\n' "${bad[@]}"
    echo "check_format: ${#bad[@]} of ${#files[@]} files differ; scripts/check_format.sh --fix formats them"
    exit 1
fi
echo "check_format: ${#files[@]} files are formatted"
