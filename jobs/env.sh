# What is particular to a site: every job script reads this file. Edit it once, or copy it and render with --env FILE.
# Here NODES, RANKS_PER_NODE, RANKS and THREADS are known, and GPUS_PER_NODE in gpu_node (else empty).
# shellcheck shell=bash disable=SC2034  # launch.sh and the job scripts read these variables

# Modules, and the Python that has shardkit:
#   module load mpich
#   . "$HOME/shardkit/bin/activate"
PYTHON=(python3)

# CuPy keeps compiled kernels in a folder: one of each node's own, since ranks of many nodes in one home wait for each other.
if [ -n "${GPUS_PER_NODE:-}" ]; then
    export CUPY_CACHE_DIR=${CUPY_CACHE_DIR:-/tmp/cupy-$(id -u)}
    if ! (umask 077 && mkdir -p "$CUPY_CACHE_DIR") || [ ! -O "$CUPY_CACHE_DIR" ] || [ -L "$CUPY_CACHE_DIR" ]; then
        echo "$CUPY_CACHE_DIR is not a folder of this user: kernels from there are not run" >&2
        unset CUPY_CACHE_DIR
    fi
fi

# srun: --mpi=pmi2 for MPICH, Intel MPI and Cray, --mpi=pmix for Open MPI; `srun --mpi=list` shows what the site has.
SRUN=(srun --mpi=pmi2 --cpu-bind=cores)
# MPI_Init of MPICH 5 over UCX fails or hangs at some starts under srun --mpi=pmi2 of SLURM 22.05, which cuts its long
# messages in two. Over libfabric they are short:
#   export MPIR_CVAR_CH4_NETMOD=ofi

# mpiexec, of the MPI that mpi4py loads. MPICH and Intel MPI:
MPIEXEC=(mpiexec -ppn "$RANKS_PER_NODE" -bind-to "core:$THREADS")
# Open MPI:
#   MPIEXEC=(mpiexec --map-by "ppr:$RANKS_PER_NODE:node:PE=$THREADS" --bind-to core)

# How long srun or mpiexec may need until all ranks run, in seconds. A warning in this time is passed on after it:
#   LAUNCH_SECONDS=60
