#!/usr/bin/env bash
# Trains the demo model by a training job of Switchyard: starts a server with one training worker, submits job.json, and shows
# it until it ends; then copies the weights here.  Started again it goes on from the job's last checkpoint.
# usage: deploy/demo-model/train_job.sh DATA WORK [BIN]
#   DATA: what prepare_data.py wrote (train.jsonl); WORK: a folder for the job, its checkpoints and logs; BIN: build/release/bin
set -euo pipefail
model=$(cd "$(dirname "$0")" && pwd)
data=${1:?$0: wants the folder of train.jsonl} work=${2:?$0: wants a folder to work in} bin=${3:-$model/../../build/release/bin}
port=${PORT:-50951}

mkdir -p "$work/checkpoints/demo-model"
cp "$model"/{config.json,generation_config.json,tokenizer.json} "$work/checkpoints/demo-model"
# Documents end with the tokenizer's end of text; the served model's is the end of a chat's turn.
sed 's/"eos_token": "<|im_end|>"/"eos_token": "<|endoftext|>"/' "$model/tokenizer_config.json" >"$work/checkpoints/demo-model/tokenizer_config.json"
"$bin/switchyard-server" --model="$model" --port="$port" --metrics_port=$((port + 1)) --local_workers=1 --threads=1 \
  --local_train_workers=1 --train_threads="${THREADS:-$(nproc)}" --dataset_root="$data" --checkpoint_root="$work/checkpoints" >"$work/server.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null && wait "$server" || true' EXIT
cli() { "$bin/switchyard" "$@" --server="127.0.0.1:$port"; }
for _ in $(seq 100); do
  cli status >/dev/null 2>&1 && break
  kill -0 "$server" || { cat "$work/server.log" >&2; exit 1; }
  sleep 0.2
done
[ -s "$work/job" ] || cli train submit --spec="$model/job.json" --request_id=demo-model >"$work/job"
job=$(grep -oE 'job-[0-9a-f]+' "$work/job" | head -n 1)
cli train watch "$job"
folder=$work/checkpoints/$job/$(cut -d ' ' -f 1 "$work/checkpoints/$job/LATEST")
cp "$folder"/model*.safetensors "$model/model.safetensors"
echo "$folder/ serves; its weights are in $model"
