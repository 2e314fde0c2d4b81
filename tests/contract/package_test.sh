#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs BUILD_DIR into a scratch prefix, then builds and runs users' programs against it: in C++ with
# find_package(gimlet) and with pkg-config, in C with both, and the external project of the examples. Checks that
# libgimlet.so exports what gimlet.h declares.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
build_dir="$(cd "${1:?usage: package_test.sh BUILD_DIR}" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
prefix="$scratch/prefix"

cmake --install "$build_dir" --prefix "$prefix" >"$scratch/install.log" || { cat "$scratch/install.log"; exit 1; }

mkdir "$scratch/user"
cat >"$scratch/user/main.cc" <<'SOURCE'
#include <cstdio>

#include "host/base/version.hpp"
#include "runtime/runtime.hpp"

int main() {
    // One call into the host library, one into the runtime; an empty configuration has faults.
    const auto faults = gimlet::validate(gimlet::MoeConfig{});
    std::printf("gimlet %s, %zu faults\n", gimlet::version_text(), faults.size());
    return faults.empty() ? 1 : 0;
}
SOURCE
cat >"$scratch/user/CMakeLists.txt" <<'SOURCE'
cmake_minimum_required(VERSION 3.25)
project(user CXX)
find_package(gimlet 0.1 REQUIRED)
add_executable(user main.cc)
target_link_libraries(user PRIVATE gimlet::gimlet)
SOURCE

echo "== find_package"
cmake -S "$scratch/user" -B "$scratch/user-build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$scratch/user-build"
"$scratch/user-build/user"

echo "== pkg-config"
PKG_CONFIG_PATH="$(dirname "$(find "$prefix" -name gimlet.pc)")"
export PKG_CONFIG_PATH
# The .pc file names the configured prefix; a scratch prefix has to be given by hand.
read -ra flags < <(pkg-config --define-variable=prefix="$prefix" --cflags --libs gimlet)
c++ "$scratch/user/main.cc" "${flags[@]}" -o "$scratch/user-pc"
"$scratch/user-pc"

echo "== C alone: find_package"
mkdir "$scratch/c"
cat >"$scratch/c/main.c" <<'SOURCE'
#include <stdio.h>

#include "runtime/capi/gimlet.h"

int main(void) {
    // One refusal, with its text; then the smallest object.
    gimlet_bootstrap* bootstrap = NULL;
    if (gimlet_bootstrap_barrier(bootstrap) != GIMLET_INVALID_ARGUMENT) return 1;
    printf("gimlet %s: %s\n", gimlet_version(), gimlet_last_error());
    if (gimlet_bootstrap_create_single(&bootstrap) != GIMLET_OK) return 2;
    return gimlet_bootstrap_destroy(bootstrap);
}
SOURCE
cat >"$scratch/c/CMakeLists.txt" <<'SOURCE'
cmake_minimum_required(VERSION 3.25)
project(user C)
set(CMAKE_C_STANDARD 11)
find_package(gimlet 0.1 REQUIRED)
add_executable(user main.c)
target_link_libraries(user PRIVATE gimlet::capi)
SOURCE
cmake -S "$scratch/c" -B "$scratch/c-build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$scratch/c-build"
"$scratch/c-build/user"

echo "== C alone: pkg-config"
read -ra flags < <(pkg-config --define-variable=prefix="$prefix" --cflags --libs gimlet-c)
cc -std=c11 "$scratch/c/main.c" "${flags[@]}" -o "$scratch/user-c"
library="$(find "$prefix" -name libgimlet.so)"
LD_LIBRARY_PATH="$(dirname "$library")" "$scratch/user-c"

echo "== exported symbols"
sed -nE 's/^GIMLET_API .*\b(gimlet_[a-z0-9_]+)\(.*/\1/p' "$root/runtime/capi/gimlet.h" | sort >"$scratch/declared"
sed -nE 's/^    (gimlet_[a-z0-9_]+);$/\1/p' "$root/runtime/capi/gimlet.map" | sort >"$scratch/mapped"
# Versioned names read name@@NODE; the nodes themselves are absolute symbols. The emulator's CUDA and NCCL
# functions come in a node of their own.
nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | grep -v '@@GIMLET_EMULATOR$' | sed 's/@@.*//' |
    sort >"$scratch/exported"
[ -s "$scratch/declared" ] || { echo "no declaration was found in gimlet.h"; exit 1; }
diff "$scratch/declared" "$scratch/mapped" || { echo "gimlet.map does not name what gimlet.h declares"; exit 1; }
diff "$scratch/declared" "$scratch/exported" || { echo "libgimlet.so exports something else"; exit 1; }
echo "$(wc -l <"$scratch/exported") functions"

if command -v mpirun >/dev/null; then
    echo "== the external project"
    cmake -S "$root/mpi_tests/examples/external_project" -B "$scratch/external" -G Ninja \
        -DCMAKE_PREFIX_PATH="$prefix"
    cmake --build "$scratch/external"
    for program in one_layer plain_c; do
        bash "$root/mpi_tests/examples/run_example.sh" "$scratch/external/$program" 4
    done
fi
