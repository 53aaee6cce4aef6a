#!/usr/bin/env bash
# A solver and a training in one MPI_COMM_WORLD: on each node the last ranks train. Made by
# `shardkit render --template coupled_shared`; see jobs/README.md.
#SBATCH --job-name=@{name}
#SBATCH --nodes=@{nodes}
#SBATCH --ntasks-per-node=@{ranks_per_node}
#SBATCH --cpus-per-task=@{threads}
#SBATCH --exclusive
#SBATCH --time=@{time}
#SBATCH --signal=B:USR1@@{notice_seconds}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail

# shellcheck disable=SC2034  # launch.sh and env.sh read these
NODES="@{nodes}" RANKS_PER_NODE="@{ranks_per_node}" THREADS="@{threads}" LAUNCHER="@{launcher}" RESTARTS="@{restarts}" \
    TRAINERS_PER_NODE="@{trainers}" ENV_FILE="@{env_file}" STAGE="@{stage}"
# shellcheck source=/dev/null
. "@{jobs}/launch.sh"

# shellcheck disable=SC2034  # launch.sh reads it
SOLVER=("@{solver}")
slurm_end_time
run_ranks "@{command}"
end_slurm
