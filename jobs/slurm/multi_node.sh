#!/usr/bin/env bash
# Train on several whole nodes. Made by `shardkit render --template multi_node`; see jobs/README.md.
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
set -euo pipefail

# shellcheck disable=SC2034  # launch.sh and env.sh read these
NODES="@{nodes}" RANKS_PER_NODE="@{ranks_per_node}" THREADS="@{threads}" LAUNCHER="@{launcher}" RESTARTS="@{restarts}" \
    ENV_FILE="@{env_file}" STAGE="@{stage}" ELASTIC_RUN="@{elastic_run}"
# shellcheck source=/dev/null
. "@{jobs}/launch.sh"

slurm_end_time
run_ranks "@{command}"
end_slurm
