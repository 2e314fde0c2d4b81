#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Gimlet builds with: Debian/Ubuntu packages, and, where nvcc exists, the pinned NCCL wheel
# unpacked into .deps/nccl of this project. Safe to run again: what is there already is left alone.
set -euo pipefail

# The one place that pins NCCL. The wheel's CUDA major version must be that of the nvcc in use.
NCCL_WHEEL="nvidia-nccl-cu13"
NCCL_WHEEL_VERSION="2.30.7"

project_dir="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
nccl_dir="$project_dir/.deps/nccl"

required_packages=(
    build-essential cmake ninja-build ccache pkg-config python3
    libopenmpi-dev openmpi-bin
    catch2 libboost-context-dev libcli11-dev libfmt-dev libucx-dev nlohmann-json3-dev
)
# Only the format check needs this one; distributions without it still build and test.
optional_packages=(clang-format-14)

usage() {
    cat <<USAGE
Usage: scripts/install_deps.sh [--no-gpu] [--help]

Installs with apt-get (as root, or through sudo):
  ${required_packages[*]}
  and, if the distribution has it: ${optional_packages[*]}
Where nvcc is found it also unpacks $NCCL_WHEEL==$NCCL_WHEEL_VERSION from PyPI into .deps/nccl.

  --no-gpu   leave NCCL out even if nvcc is there
  --help     show this text
USAGE
}

say() { printf 'install_deps: %s\n' "$*"; }

# fail MESSAGE REMEDY: every failure says what to do.
fail() {
    printf 'install_deps: ERROR: %s\n' "$1" >&2
    printf 'install_deps: to fix:  %s\n' "$2" >&2
    exit 1
}

with_gpu=yes
for argument in "$@"; do
    case "$argument" in
        --no-gpu) with_gpu=no ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; fail "unknown option '$argument'" "use one of the options above" ;;
    esac
done

package_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# as_root COMMAND...: runs it as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "packages are missing, this user is not root, and there is no sudo" \
             "run this script as root, or ask for these packages: ${required_packages[*]}"
    fi
}

apt_updated=no
apt_update_once() {
    [ "$apt_updated" = no ] || return 0
    say "apt-get update"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
        fail "apt-get update failed" "check the network and /etc/apt/sources.list, then run this script again"
    apt_updated=yes
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

install_packages() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
        fail "this system has no apt-get; the script knows Debian and Ubuntu only" \
             "install the equivalents of: ${required_packages[*]}"
    local missing=() package
    for package in "${required_packages[@]}"; do
        package_installed "$package" || missing+=("$package")
    done
    if [ "${#missing[@]}" -gt 0 ]; then
        apt_update_once
        say "installing ${missing[*]}"
        apt_install "${missing[@]}" ||
            fail "apt-get could not install: ${missing[*]}" \
                 "read apt's message above; if another apt is running, wait for it and run this script again"
    fi
    for package in "${optional_packages[@]}"; do
        package_installed "$package" && continue
        apt_update_once
        apt_install "$package" ||
            say "note: $package is not to be had here; the format check will be skipped"
    done
    say "system packages: ready"
}

check_versions() {
    local have
    have="$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')"
    [ "$(printf '%s\n' 3.25 "$have" | sort -V | head -n1)" = 3.25 ] ||
        fail "CMake $have is too old; 3.25 or newer is needed" \
             "install a newer one, for example: python3 -m pip install --user 'cmake>=3.25'"
    have="$(c++ -dumpversion)"
    [ "${have%%.*}" -ge 12 ] || c++ --version | grep -qi clang ||
        fail "the C++ compiler c++ is GCC $have; GCC 12 or newer is needed for C++20" \
             "apt-get install g++-12, then configure with CXX=g++-12"
}

find_nvcc() {
    command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; }
}

nccl_ready() {
    [ "$(cat "$nccl_dir/VERSION" 2>/dev/null)" = "$NCCL_WHEEL==$NCCL_WHEEL_VERSION" ] &&
        [ -f "$nccl_dir/include/nccl.h" ] && [ -e "$nccl_dir/lib/libnccl.so" ]
}

install_nccl() {
    if nccl_ready; then
        say "NCCL $NCCL_WHEEL_VERSION: ready in .deps/nccl"
        return
    fi
    if ! python3 -m pip --version >/dev/null 2>&1; then
        apt_update_once
        apt_install python3-pip || fail "python3-pip could not be installed" "read apt's message above"
    fi
    local scratch
    scratch="$(mktemp -d)"
    # shellcheck disable=SC2064  # the folder of now, not of exit time
    trap "rm -rf '$scratch'" EXIT
    say "downloading $NCCL_WHEEL==$NCCL_WHEEL_VERSION (about 200 MB)"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$scratch" "$NCCL_WHEEL==$NCCL_WHEEL_VERSION" ||
        fail "pip could not download $NCCL_WHEEL==$NCCL_WHEEL_VERSION" \
             "check the network, or run with --no-gpu, or set NCCL_HOME to an NCCL 2.30.5 or newer"
    python3 - "$scratch" <<'PYTHON' || fail "the NCCL wheel could not be unpacked" "check the free disk space (df -h)"
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
zipfile.ZipFile(wheel).extractall(folder / "unpacked")
PYTHON
    local unpacked="$scratch/unpacked/nvidia/nccl"
    [ -f "$unpacked/include/nccl.h" ] && [ -f "$unpacked/lib/libnccl.so.2" ] ||
        fail "the wheel does not hold nvidia/nccl/include and lib" \
             "the wheel's layout has changed: adapt install_nccl in scripts/install_deps.sh"
    rm -rf "$nccl_dir"
    mkdir -p "$nccl_dir"
    mv "$unpacked/include" "$unpacked/lib" "$nccl_dir/"
    ln -s libnccl.so.2 "$nccl_dir/lib/libnccl.so"
    # Written last: an interrupted run is seen as not ready.
    echo "$NCCL_WHEEL==$NCCL_WHEEL_VERSION" >"$nccl_dir/VERSION"
    say "NCCL $NCCL_WHEEL_VERSION: unpacked into .deps/nccl"
}

install_packages
check_versions
if [ "$with_gpu" = no ]; then
    say "NCCL: left out (--no-gpu)"
elif nvcc="$(find_nvcc)"; then
    say "nvcc: $nvcc"
    install_nccl
else
    say "no nvcc here: the emulator presets work, the cuda preset needs the CUDA 13 toolkit"
fi
say "done"
