# What all job scripts have in common: start the ranks, pass signals on, and queue the job again if the run is not done.
#
#   . launch.sh                    needs NODES, RANKS_PER_NODE, THREADS, LAUNCHER, RESTARTS; reads ENV_FILE
#                                  With STAGE, a folder of each node's own, the files of Python are copied there first
#   run_ranks COMMAND ...          start it on all ranks and wait; CODE is its exit code. With ELASTIC_RUN, the folder of a run
#                                  with run.elastic, it is started again after a death, on the nodes that are left
#                                  With SOLVER, words of another program, that runs on the first ranks, and COMMAND on the last:
#                                  TRAINERS_PER_NODE of each node, or, in a heterogeneous job, of TRAINER_NODES other nodes
#   end_slurm                      (end_pbs, end_lsf, end_chain) queue again if CODE is 75, and exit with CODE
#
# Exit code 75 means: a checkpoint is there, and the same command goes on with it.
# shellcheck shell=bash disable=SC2153  # variables of the job scripts

# USR1 and USR2 reach this script alone, at any time: both launchers hand them on to all ranks. TERM has reached the ranks
# already; they save and end by themselves, and this script waits for them. INT, Ctrl-C where a script is run by hand, does not
# reach what a script has in the background: it is handed on as USR1.
LAUNCHER_PROCESS='' REMINDER='' LAUNCH_SECONDS=15
trap 'INTERRUPTED=yes WARNED=yes; remind_ranks' USR1 USR2
trap 'INTERRUPTED=yes CANCELLED=yes' TERM
trap 'INTERRUPTED=yes CANCELLED=yes WARNED=yes; remind_ranks' INT

RANKS=$((NODES * RANKS_PER_NODE))

# The job is all there is on its cores, so BLAS has as many threads as a rank has cores; the trained bits depend on it.
export OMP_NUM_THREADS=$THREADS OPENBLAS_NUM_THREADS=$THREADS MKL_NUM_THREADS=$THREADS

# shellcheck source=/dev/null
. "$ENV_FILE"

# A file of the working folder is no program of the batch system: PATH without the entries that mean this folder.
IFS=: read -ra FOLDERS <<< "$PATH"
KEPT=
for folder in "${FOLDERS[@]}"; do
    case $folder in '' | . | ./) ;; *) KEPT=${KEPT:+$KEPT:}$folder ;; esac
done
PATH=$KEPT

STAGED=
# What every rank reads at its start goes to STAGE, a folder in the memory of each node: one node packs it, sbcast hands it on
# from node to node, and no rank asks the file system that all nodes share. Where that fails, ranks start as without it.
stage_python() {
    local packed
    STAGED=$STAGE/shardkit-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
    packed=$(umask 077 && mktemp "$STAGE/shardkit-packed-XXXXXXXX") || packed=
    # shellcheck disable=SC2016  # $1 is for the shell of each node
    if [ -n "$packed" ] && "${PYTHON[@]}" -P -m shardkit.files.packing "$packed" &&
        on_each_node 'umask 077; mkdir "$1"' &&
        sbcast "$packed" "$STAGED/packed" &&
        on_each_node 'tar --extract --no-same-owner --file="$1/packed" --directory="$1" && rm "$1/packed"'; then
        export PYTHONPATH=$STAGED/site-packages:$STAGED/stdlib:$STAGED/stdlib/lib-dynload${PYTHONPATH:+:$PYTHONPATH}
        trap unstage_python EXIT
        echo "$(date '+%F %T')  the files of Python are in $STAGED on $NODES nodes"
    else
        echo "the files of Python could not be copied to $STAGE: ranks read them where they are" >&2
        unstage_python
    fi
    rm -f ${packed:+"$packed"}
}

on_each_node() {
    srun --mpi=none --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --cpus-per-task=1 \
        ${LEFT:+--nodelist="$LEFT"} bash -c "$1" node "$STAGED"
}

unstage_python() {
    trap - EXIT
    # shellcheck disable=SC2016  # $1 is for the shell of each node
    [ -z "${STAGED:-}" ] || on_each_node '[ ! -O "$1" ] || rm -rf "$1"' || true
    STAGED=
}

run_ranks() {
    [ -z "${STAGE:-}" ] || stage_python
    NEWEST=$(newest_checkpoint)
    start_ranks "$@"
    while may_start_again; do
        start_ranks "$@"
    done
}

start_ranks() {
    local start
    # shellcheck disable=SC2016  # $@ is for the shell of each rank
    local rank=(bash -c 'trap "" USR1 USR2; exec "$@"' rank)
    case $LAUNCHER in
        srun) start=("${SRUN[@]}" --nodes="$NODES" --ntasks="$RANKS" --cpus-per-task="$THREADS" ${LEFT:+--nodelist="$LEFT"}) ;;
        mpiexec) start=("${MPIEXEC[@]}" ${LEFT:+-hosts "$LEFT"} -n "$RANKS") ;;
    esac
    start+=("${rank[@]}" "$@")
    [ -z "${SOLVER:-}" ] || two_programs "$@"
    # A rank begins with the signals ignored, since Python takes a while until it listens to them.
    # How often they were started tells the next ones that those before are gone, and that the run folder is theirs.
    SHARDKIT_LAUNCH=$((${SHARDKIT_LAUNCH:-0} + 1))
    export SHARDKIT_LAUNCH
    "${start[@]}" &
    LAUNCHER_PROCESS=$! LAUNCHED=$SECONDS
    remind_ranks
    while :; do
        INTERRUPTED=
        CODE=0
        wait "$LAUNCHER_PROCESS" || CODE=$?
        [ -n "$INTERRUPTED" ] || break
    done
    rm -f ${HOSTS:+"$HOSTS"}
    LAUNCHER_PROCESS=''             # a signal is too late to matter now
    [ -z "$REMINDER" ] || kill "$REMINDER" 2>/dev/null || true
    REMINDER=''
    echo "$(date '+%F %T')  job ${SLURM_JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-}}}: the ranks ended with exit code $CODE"
}

# How SOLVER, on the first ranks, and a COMMAND, on the last ones, start in one MPI_COMM_WORLD.
two_programs() {
    local trainers=$((${TRAINER_NODES:-$NODES} * TRAINERS_PER_NODE)) threads=--cpus-per-task=$THREADS
    local solvers=$((RANKS - trainers)) of_each=$((RANKS_PER_NODE - TRAINERS_PER_NODE))
    if [ -n "${TRAINER_NODES:-}" ]; then
        start=("${SRUN[@]}" --het-group=0 --nodes="$NODES" --ntasks="$RANKS" "$threads" "${rank[@]}" "${SOLVER[@]}"
            : "${SRUN[@]:1}" --het-group=1 --nodes="$TRAINER_NODES" --ntasks="$trainers" "$threads" "${rank[@]}" "$@")
    elif [ "$LAUNCHER" = mpiexec ]; then
        start=("${MPIEXEC[@]}" -n "$solvers" "${rank[@]}" "${SOLVER[@]}" : -n "$trainers" "${rank[@]}" "$@")
    else
        # Each node has some of both, so that what is put stays on it: the nodes once for SOLVER, and once more.
        HOSTS=$(mktemp)
        scontrol show hostnames "${SLURM_JOB_NODELIST:-}" |
            awk -v n="$of_each" -v k="$TRAINERS_PER_NODE" '{ node[NR] = $1 }
                END { for (i = 1; i <= NR; i++) for (j = 0; j < n; j++) print node[i]
                      for (i = 1; i <= NR; i++) for (j = 0; j < k; j++) print node[i] }' > "$HOSTS"
        # shellcheck disable=SC2016  # for the shell of each rank
        start=("${SRUN[@]}" --nodelist="$HOSTS" --distribution=arbitrary --ntasks="$RANKS" "$threads" "${rank[@]}"
            bash -c 'if [ "$SLURM_PROCID" -lt "$1" ]; then set -- "${@:3:$2}"; else shift $(($2 + 2)); fi; exec "$@"'
            rank "$solvers" "${#SOLVER[@]}" "${SOLVER[@]}" "$@")
    fi
}

# Once this script was warned: tell the ranks so. Not while the launcher is young, since the signal breaks the start of ranks
# (MPICH's mpiexec ends, srun's ranks may hang), and again and again, since ranks that are still starting do not hear it.
remind_ranks() {
    [ -n "${WARNED:-}" ] && [ -n "$LAUNCHER_PROCESS" ] && [ -z "$REMINDER" ] || return 0
    local young=$((LAUNCHED + LAUNCH_SECONDS - SECONDS))
    { sleep $((young > 0 ? young : 0)); while kill -USR1 "$LAUNCHER_PROCESS"; do sleep 3; done; } > /dev/null 2>&1 &
    REMINDER=$!
}

newest_checkpoint() {
    [ -z "${ELASTIC_RUN:-}" ] || cat "$ELASTIC_RUN/checkpoints/newest" 2>/dev/null || true
}

# True if a rank has died (any exit code but those for done, wrong usage, and saved and stopped), and the run has come on since
# the last start: else it would die again at the same place.
may_start_again() {
    local before=$NEWEST
    [ -n "${ELASTIC_RUN:-}" ] && [ -z "${CANCELLED:-}" ] || return 1
    case $CODE in 0 | 2 | 75) return 1 ;; esac
    NEWEST=$(newest_checkpoint)
    if [ "$NEWEST" = "$before" ]; then
        echo "no checkpoint was written since the last start, so the job is not started again"
        return 1
    fi
    count_nodes
    echo "$(date '+%F %T')  starting again with ${NEWEST} on $NODES nodes, $RANKS ranks"
}

# NODES, RANKS, and LEFT, their names, if SLURM has lost some.
count_nodes() {
    local left
    [ -n "${SLURM_JOB_NODELIST:-}" ] || return 0
    left=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format="%N %t" |
        awk '$2 !~ /down|drain|drng|fail|unk|\*/ { print $1 }' | sort -u) || return 0
    if [ -n "$left" ] && [ "$(wc -l <<< "$left")" -lt "$NODES" ]; then
        NODES=$(wc -l <<< "$left")
        RANKS=$((NODES * RANKS_PER_NODE))
        LEFT=$(paste -sd, <<< "$left")
    fi
}

# may_go_on COUNT: true if the run asks for it and the job was not queued again too often.
may_go_on() {
    [ "$CODE" = 75 ] || return 1
    if [ -n "${CANCELLED:-}" ]; then
        echo "the job was cancelled: a checkpoint is there; submit this script again to go on"
        return 1
    fi
    if [ "$1" -ge "$RESTARTS" ]; then
        echo "not done after $1 restarts; submit this script again to go on"
        return 1
    fi
}

# When the batch system will end this job, for the first rank, which looks at the clock between steps.
slurm_end_time() {
    local end
    if end=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format=%e | head -n 1) && end=$(date --date "$end" +%s 2>/dev/null); then
        export SHARDKIT_END_TIME=$end
    fi
}

limit_end_time() {
    SHARDKIT_END_TIME=$(($(date +%s) + LIMIT_SECONDS))
    export SHARDKIT_END_TIME
}

end_slurm() {
    unstage_python
    if may_go_on "${SLURM_RESTART_COUNT:-0}"; then
        scontrol requeue "$SLURM_JOB_ID"        # ends this script; the job keeps its number and its output file
    fi
    exit "$CODE"
}

# For sites that do not requeue: the next link of the chain is a job of its own.
end_chain() {
    unstage_python
    if may_go_on "${LINK:-0}"; then
        LINK=$((${LINK:-0} + 1)) sbatch --dependency="afterany:$SLURM_JOB_ID" --export=ALL "$SCRIPT"
    fi
    exit "$CODE"
}

end_pbs() {
    if may_go_on "${LINK:-0}"; then
        qsub -W depend="afterany:$PBS_JOBID" -v LINK="$((${LINK:-0} + 1))" "$SCRIPT"
    fi
    exit "$CODE"
}

# LSF queues the job again by itself: #BSUB -Q 75.
end_lsf() {
    exit "$CODE"
}
