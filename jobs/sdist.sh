#!/usr/bin/env bash
# Build the source archive and the wheel, install from the archive, and run a small but telling part of the tests from the unpacked
# archive on what was installed: what a packager does.
#
#   bash jobs/sdist.sh                                  PYTHON=python3.13 bash jobs/sdist.sh
#
# Environment: VENV (default .venv-sdist), PYTHON (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv-sdist}
PYTHON=${PYTHON:-python3}
case $VENV in /*) root=$VENV ;; *) root=$PWD/$VENV ;; esac

[ -x "$root/bin/python" ] || "$PYTHON" -m venv "$root"
pip=("$root/bin/python" -m pip --disable-pip-version-check)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

echo "== build"
"${pip[@]}" install --quiet build
"$root/bin/python" -m build --outdir "$folder" . > "$folder/build.log" || { cat "$folder/build.log" >&2; exit 1; }
tar -xzf "$folder"/shardkit-*.tar.gz -C "$folder"
archive=$(echo "$folder"/shardkit-*/)

echo "== install"
"${pip[@]}" install --quiet -c constraints.txt "shardkit[mpich,test] @ file://$(echo "$folder"/shardkit-*.tar.gz)"
"${pip[@]}" check

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
unset PYTHONPATH                    # the tests are those of the archive, the package is the installed one
cd "$archive"
rm -r shardkit

echo "== kernels, training under every policy, checkpoints, a user's script"
"$root/bin/pytest" -q -n "${WORKERS:-2}" tests/pure/test_kernel_parity.py tests/pure/test_layers.py tests/pure/test_optim.py \
    tests/threads/test_strategies.py::test_the_trained_bits_and_losses_do_not_depend_on_strategy_or_ranks \
    tests/threads/test_checkpoint.py::test_resuming_equals_the_uninterrupted_run_bit_for_bit \
    tests/pure/test_types.py::test_the_script_of_a_user_runs

echo "== MPI on 2 ranks"
"$root/bin/mpiexec" -n 2 "$root/bin/pytest" -q tests/mpi/test_training.py

echo "== the command"
"$root/bin/shardkit" --help > "$folder/help.txt"
