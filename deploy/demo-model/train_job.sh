#!/usr/bin/env bash
# Trains the demo model by two training jobs of Switchyard: starts a server with one training worker, submits job.json
# (sequences of 512 tokens), then job_long.json, which goes on from its checkpoint with sequences of the whole context,
# and shows them until they end; then copies the weights here.  Started again it goes on from the last checkpoint.
# usage: deploy/demo-model/train_job.sh DATA WORK [BIN]
#   DATA: what prepare_data.py wrote; WORK: a folder for the jobs, their checkpoints and logs; BIN: build/release/bin
set -euo pipefail
model=$(cd "$(dirname "$0")" && pwd)
data=${1:?$0: wants the folder of train_prose.jsonl} work=${2:?$0: wants a folder to work in} bin=${3:-$model/../../build/release/bin}
port=${PORT:-50951}

mkdir -p "$work/checkpoints/demo-model"
cp "$model"/{config.json,generation_config.json,tokenizer.json} "$work/checkpoints/demo-model"
# Documents end with the tokenizer's end of text; the served model's is the end of a chat's turn.
sed 's/"eos_token": "<|im_end|>"/"eos_token": "<|endoftext|>"/' "$model/tokenizer_config.json" >"$work/checkpoints/demo-model/tokenizer_config.json"
"$bin/switchyard-server" --model="$model" --port="$port" --metrics_port=$((port + 3)) --local_workers=1 --threads=1 \
  --local_train_workers=1 --train_threads="${THREADS:-$(nproc)}" --dataset_root="$data" --checkpoint_root="$work/checkpoints" >"$work/server.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null && wait "$server" || true' EXIT
cli() { "$bin/switchyard" "$@" --server="127.0.0.1:$((port + 1))"; }
for _ in $(seq 100); do
  "$bin/switchyard" status --server="127.0.0.1:$port" >/dev/null 2>&1 && break
  kill -0 "$server" || { cat "$work/server.log" >&2; exit 1; }
  sleep 0.2
done
# $1: the job's name and spec; the rest: more of the spec.  A request that was made before is the same job.
run_job() {
  local spec=$1 job
  shift
  job=$(cli train submit --spec="$model/$spec.json" --request_id="$spec" "$@" | grep -oE 'job-[0-9a-f]+' | head -n 1)
  cli train watch "$job"
  folder=$job/$(cut -d ' ' -f 1 "$work/checkpoints/$job/LATEST")
}
run_job job
run_job job_long --base_checkpoint="$folder"
cp "$work/checkpoints/$folder"/model*.safetensors "$model/model.safetensors"
echo "$work/checkpoints/$folder/ serves; its weights are in $model"
