#!/usr/bin/env bash
# Run every benchmark and write benchmarks/results/*.json and benchmarks/results/README.md.
#
#   bash benchmarks/run_all.sh [NAME ...]         NAME: train_step, memory, ...; default: all
#
# For a quiet machine, about half an hour on two cores. Needs shardkit with an MPI library, and PyTorch for the comparisons:
#   python -m pip install --editable '.[mpich]' torch
# Environment: PYTHON (default python3). A benchmark that fails is named at the end, and the others run.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1

failed=()
for name in "${@:-}"; do
    [ -z "$name" ] || [ -f "benchmarks/$name.py" ] || { echo "there is no benchmarks/$name.py" >&2; exit 2; }
done
[ $# -gt 0 ] || set -- train_step memory scaling kernels collectives checkpoint
for name in "$@"; do
    [ -f "benchmarks/$name.py" ] || continue
    echo "== $name"
    "$PYTHON" "benchmarks/$name.py" || failed+=("$name")
done
"$PYTHON" benchmarks/report.py
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed, wholly or in part: ${failed[*]}"
    exit 1
fi
