#!/usr/bin/env bash
# Run every benchmark and write benchmarks/results/*.json and benchmarks/results/README.md.
#
#   bash benchmarks/run_all.sh [NAME ...]         NAME: train_step, memory, ...; default: all
#
# For a quiet machine, about half an hour on two cores. Needs shardkit with an MPI library, and PyTorch for the comparisons:
#   python -m pip install --editable '.[mpich,mkl]' torch
# Environment: PYTHON (default python3). A benchmark that fails is named at the end, and the others run.
set -uo pipefail            # not -e: a benchmark that fails does not stop the others
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
mpiexec=$(dirname "$(command -v "$PYTHON")")/mpiexec            # the one that came with this Python, or the system's
[ -x "$mpiexec" ] || mpiexec=mpiexec
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1 PYTHONUNBUFFERED=1

run() {         # run NAME: as the first line of usage in its docstring says, under mpiexec or not
    local ranks
    ranks=$(sed -nE "s|^    mpiexec -n ([0-9]+) python benchmarks/$1.py.*|\\1|p" "benchmarks/$1.py" | head -n 1)
    ${ranks:+"$mpiexec" -n "$ranks"} "$PYTHON" "benchmarks/$1.py" | tee "benchmarks/results/$1.txt"
}

[ $# -gt 0 ] || set -- train_step memory scaling kernels collectives checkpoint planner
mkdir -p benchmarks/results
failed=()
for name in "$@"; do
    echo "== $name"
    if [ ! -f "benchmarks/$name.py" ]; then
        echo "there is no benchmarks/$name.py"
    elif ! run "$name"; then
        failed+=("$name")
    fi
done
"$PYTHON" benchmarks/report.py
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed, wholly or in part: ${failed[*]}"
    exit 1
fi
