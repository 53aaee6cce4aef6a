#!/usr/bin/env bash
# Run the GPU tests on a machine that has a GPU and CuPy, mpi4py, h5py, numba and pytest (pip install '.[mpich,test,cuda12]').
# Without a GPU they run on the stand-in for CuPy (tests/stand_in), and what needs a real one is skipped.
#
#   bash tests/gpu/run.sh [pytest arguments]        PYTHON=python3 chooses the interpreter, MPIEXEC the launcher
#
# All output is kept in LOG (default gpu-tests.log) too. A test that takes longer than its limit fails, and the others go on. The
# plugin pytest-benchmark is left out: nothing here is its own.
# With an mpiexec (beside the interpreter, or on PATH) ranks of 1, 2 and 4 processes share the GPU too.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
python=$(command -v "${PYTHON:-python3}")
status=0
exec > >(tee "${LOG:-gpu-tests.log}") 2>&1
options=(-q -p no:benchmark -o timeout_method=signal)

"$python" - <<'END'
from shardkit.testing.array import Device
from shardkit import DeviceError

try:
    device = Device("cuda")
except DeviceError as error:
    print(f"== NO GPU: {error}")
    print("== tests run on the stand-in for CuPy; those that need a device are skipped, and nothing is shown about one")
else:
    print(f"== on {device}: {device.memory()}")
END

echo "== one process"
"$python" -m pytest "${options[@]}" --all tests/gpu "$@" || status=$?

mpiexec=${MPIEXEC:-$(dirname "$python")/mpiexec}
[ -x "$mpiexec" ] || mpiexec=$(command -v mpiexec || true)
if [ -z "$mpiexec" ]; then
    echo "== no mpiexec: ranks that are processes are not tested (pip install mpich)"
    exit "$status"
fi
for ranks in 1 2 4; do
    echo "== MPI, $ranks ranks"
    "$mpiexec" -n "$ranks" "$python" -m pytest "${options[@]}" --only-mpi tests/mpi/test_gpu_mpi.py "$@" || status=$?
done
exit "$status"
