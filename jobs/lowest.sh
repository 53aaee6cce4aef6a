#!/usr/bin/env bash
# Install the lowest versions that pyproject.toml allows, and run a small but telling part of the tests on them.
#
#   bash jobs/lowest.sh             install them, and test
#   bash jobs/lowest.sh install     or one of the two
#   bash jobs/lowest.sh test
#   bash jobs/lowest.sh packages    of what is installed, all but shardkit itself
#
# Environment: VENV (default .venv-lowest), PYTHON (default python3). The bounds are read from pyproject.toml; those of extras that
# need a GPU, MKL or another MPI are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv-lowest}
PYTHON=${PYTHON:-python3}

if [ "${1:-}" != test ]; then
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    pip=("$VENV/bin/python" -m pip --disable-pip-version-check)
    mapfile -t pinned < <("$PYTHON" jobs/requirements.py --lowest mpich test)
    "${pip[@]}" install --quiet --no-compile "${pinned[@]}"
    [ "${1:-}" != packages ] || exit 0
    "${pip[@]}" install --quiet --no-deps --no-build-isolation --editable .
    "${pip[@]}" check
fi
[ "${1:-}" != install ] || exit 0

case $VENV in /*) root=$VENV ;; *) root=$PWD/$VENV ;; esac
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

echo "== lowest versions: kernels, training under every policy, checkpoints"
# Numba compiles every loop, but not once more for float64.
"$root/bin/pytest" -q -n "${WORKERS:-2}" -k "not float64" \
    tests/pure/test_kernel_parity.py::test_the_fast_twin_computes_what_the_plain_one_does \
    tests/pure/test_kernel_parity.py::test_every_loop_is_compiled_once_for_a_dtype_whatever_the_strides \
    tests/threads/test_strategies.py::test_resident_bytes_follow_the_zero_formulas \
    tests/threads/test_strategies.py::test_the_trained_bits_and_losses_do_not_depend_on_strategy_or_ranks \
    tests/threads/test_checkpoint.py::test_resuming_equals_the_uninterrupted_run_bit_for_bit

echo "== lowest versions: the commands"
"$root/bin/pytest" -q tests/pure/test_plan_command.py::test_the_recommended_command_line_is_a_configuration_that_the_ranks_fit \
    tests/e2e/test_command_line.py::test_a_run_reports_a_falling_loss_and_leaves_checkpoint_curve_and_sample

echo "== lowest versions: MPI on 2 ranks"
"$root/bin/mpiexec" -n 2 "$root/bin/pytest" -q tests/mpi/test_training.py::test_six_steps_end_in_the_bits_of_the_serial_run \
    tests/mpi/test_training.py::test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit
