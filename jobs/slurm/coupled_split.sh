#!/usr/bin/env bash
# A solver on some nodes and a training on nodes of another kind, in one MPI_COMM_WORLD: a heterogeneous job. Options of sbatch's
# command line are those of the first part alone: write them here. Made by `shardkit render --template coupled_split`; see
# jobs/README.md.
#SBATCH --job-name=@{name}
#SBATCH --nodes=@{nodes}
#SBATCH --ntasks-per-node=@{ranks_per_node}
#SBATCH --cpus-per-task=@{threads}
#SBATCH --exclusive
#SBATCH --distribution=block:block
#SBATCH --time=@{time}
#SBATCH --signal=B:USR1@@{notice_seconds}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#SBATCH hetjob
#SBATCH --nodes=@{trainer_nodes}
#SBATCH --ntasks-per-node=@{trainers}
#SBATCH --cpus-per-task=@{threads}
#SBATCH --exclusive
#SBATCH --time=@{time}@{trainer_gpus}
#SBATCH --requeue
set -euo pipefail

# shellcheck disable=SC2034  # launch.sh and env.sh read these
NODES="@{nodes}" RANKS_PER_NODE="@{ranks_per_node}" THREADS="@{threads}" LAUNCHER="@{launcher}" RESTARTS="@{restarts}" \
    TRAINERS_PER_NODE="@{trainers}" TRAINER_NODES="@{trainer_nodes}" ENV_FILE="@{env_file}"
# shellcheck source=/dev/null
. "@{jobs}/launch.sh"

# shellcheck disable=SC2034  # launch.sh reads it
SOLVER=("@{solver}")
slurm_end_time
run_ranks "@{command}"
end_slurm
