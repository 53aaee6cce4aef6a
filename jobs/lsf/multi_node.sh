#!/usr/bin/env bash
# Train on several whole nodes under LSF. Made by `shardkit render --scheduler lsf`; see jobs/README.md.
#BSUB -J @{name}
#BSUB -n @{ranks}
#BSUB -R "span[ptile=@{ranks_per_node}] affinity[core(@{threads})]"
#BSUB -x
#BSUB -W @{hours_minutes}
#BSUB -wa USR1
#BSUB -wt @{notice_minutes}
#BSUB -r
#BSUB -Q 75
#BSUB -o @{name}-%J.out
set -euo pipefail

# shellcheck disable=SC2034  # launch.sh and env.sh read these
NODES="@{nodes}" RANKS_PER_NODE="@{ranks_per_node}" THREADS="@{threads}" LAUNCHER="@{launcher}" \
    LIMIT_SECONDS="@{seconds}" ENV_FILE="@{env_file}" ELASTIC_RUN="@{elastic_run}"
# shellcheck source=/dev/null
. "@{jobs}/launch.sh"

limit_end_time
run_ranks "@{command}"
end_lsf
