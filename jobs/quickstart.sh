#!/usr/bin/env bash
# Make a virtual environment, install shardkit with an MPI library, and train a small GPT on 4 ranks.
#
#   bash jobs/quickstart.sh                                     about 70 seconds on two cores, 8 of them to compile
#   bash jobs/quickstart.sh --resume --run.steps=600            go on where it stopped
#
# Arguments are passed on to `shardkit train`. Environment: VENV (default .venv), RANKS (default 4), PYTHON (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
RANKS=${RANKS:-4}

# The environment knows what it was made from: other requirements are installed into it.
wanted=$(cat constraints.txt pyproject.toml setup.cfg | cksum)
if [ ! -x "$VENV/bin/shardkit" ] || { [ -e "$VENV/made-from" ] && [ "$(cat "$VENV/made-from")" != "$wanted" ]; }; then
    "${PYTHON:-python3}" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[mpich]'
    echo "$wanted" > "$VENV/made-from"
fi

# One BLAS thread per rank: ranks are the parallelism, and the trained bits depend on the number of threads.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

# mpiexec stands between the ranks and the terminal; this tells rank 0 that somebody watches, so that it draws a progress bar.
if [ -t 1 ]; then
    export FORCE_COLOR=1 COLUMNS="${COLUMNS:-$(tput cols 2>/dev/null || echo 100)}"
fi
exec "$VENV/bin/mpiexec" -n "$RANKS" "$VENV/bin/python" -P -m shardkit train "$@"
