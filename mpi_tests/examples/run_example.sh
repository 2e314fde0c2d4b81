#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one example: run_example.sh PROGRAM RANKS. Exit code 77 = there is no mpirun.
set -euo pipefail

program="${1:?usage: run_example.sh PROGRAM RANKS}"
ranks="${2:?usage: run_example.sh PROGRAM RANKS}"
command -v mpirun >/dev/null || { echo "mpirun not found; scripts/install_deps.sh installs Open MPI"; exit 77; }

launch=(mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
# Open MPI asks before it runs as root, as in a container.
[ "$(id -u)" -ne 0 ] || launch+=(--allow-run-as-root)
exec "${launch[@]}" -n "$ranks" "$program"
