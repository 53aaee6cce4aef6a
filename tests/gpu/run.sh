#!/usr/bin/env bash
# Run the GPU tests on a machine that has a GPU, CuPy and pytest; MPI tests too if an mpiexec is found.
#
#   bash tests/gpu/run.sh [pytest arguments]        PYTHON=python3 chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-python3}" -m pytest -q tests/gpu "$@"
