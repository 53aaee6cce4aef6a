#!/usr/bin/env bash
# A sweep: one run for each line of SWEEP, each in a folder of its own. Made by `shardkit render --template array`.
#SBATCH --job-name=@{name}
#SBATCH --array=0-@{last_run}%@{at_once}
#SBATCH --nodes=@{nodes}
#SBATCH --ntasks-per-node=@{ranks_per_node}
#SBATCH --cpus-per-task=@{threads}
#SBATCH --time=@{time}
#SBATCH --signal=B:USR1@@{notice_seconds}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.out
set -euo pipefail

# shellcheck disable=SC2034  # launch.sh and env.sh read these
NODES="@{nodes}" RANKS_PER_NODE="@{ranks_per_node}" THREADS="@{threads}" LAUNCHER="@{launcher}" RESTARTS="@{restarts}" \
    ENV_FILE="@{env_file}" STAGE="@{stage}"
# shellcheck source=/dev/null
. "@{jobs}/launch.sh"

SWEEP=(
    "@{sweep}"
)
read -ra setting <<< "${SWEEP[$SLURM_ARRAY_TASK_ID]}"

slurm_end_time
run_ranks "${PYTHON[@]}" -P -m shardkit train --resume-if-any "@{settings}" "${setting[@]}" \
    "--run.folder=@{run_folder}/$SLURM_ARRAY_TASK_ID"
end_slurm
