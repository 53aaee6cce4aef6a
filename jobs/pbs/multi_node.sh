#!/usr/bin/env bash
# Train on several whole nodes under PBS. Made by `shardkit render --scheduler pbs`; see jobs/README.md.
#PBS -N @{name}
#PBS -l select=@{nodes}:ncpus=@{cores_per_node}:mpiprocs=@{ranks_per_node}:ompthreads=@{threads}
#PBS -l place=scatter:excl
#PBS -l walltime=@{time}
#PBS -j oe
set -euo pipefail
cd "$PBS_O_WORKDIR"

# shellcheck disable=SC2034  # launch.sh and env.sh read these
NODES="@{nodes}" RANKS_PER_NODE="@{ranks_per_node}" THREADS="@{threads}" LAUNCHER="@{launcher}" RESTARTS="@{restarts}" \
    LIMIT_SECONDS="@{seconds}" SCRIPT="@{script}" ENV_FILE="@{env_file}" ELASTIC_RUN="@{elastic_run}"
# shellcheck source=/dev/null
. "@{jobs}/launch.sh"

limit_end_time          # PBS sends no signal before the limit: the run looks at the clock
run_ranks "@{command}"
end_pbs
