#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs BUILD_DIR into a scratch prefix, then builds and runs a user's program against it twice: with
# find_package(gimlet) and with pkg-config.
set -euo pipefail

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
