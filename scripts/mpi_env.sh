# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced, not run. gimlet_mpirun RANKS PROGRAM...: mpirun as it must be called for many ranks on few cores.
#
# More ranks than cores: --oversubscribe starts them and mpi_yield_when_idle keeps waiting ranks from
# starving the others. Containers run as root, which Open MPI refuses unless told twice.
gimlet_mpirun() {
    local ranks="$1" as_root=()
    shift
    [ "$(id -u)" -ne 0 ] || as_root=(--allow-run-as-root)
    mpirun "${as_root[@]}" --oversubscribe --mca mpi_yield_when_idle 1 -n "$ranks" "$@"
}
