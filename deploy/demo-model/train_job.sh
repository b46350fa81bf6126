#!/usr/bin/env bash
# Makes the demo model by two training jobs of Switchyard: writes the training text, starts a server with one training worker,
# submits job.json (sequences of 256 tokens), then job_end.json, which goes on from its weights with sequences of the whole
# context and a falling learning rate, and shows them until they end; then copies the weights here.  Started again it goes on
# from the last checkpoint.
# usage: deploy/demo-model/train_job.sh WORK [BIN]
#   WORK: a folder for the text, the jobs, their checkpoints and logs; BIN: build/release/bin
set -euo pipefail
model=$(cd "$(dirname "$0")" && pwd)
work=${1:?$0: wants a folder to work in} bin=${2:-$model/../../build/release/bin}
port=${PORT:-50951}

[ -e "$work/data/heldout.jsonl" ] || python3 -B "$model/generate_data.py" --out="$work/data"
mkdir -p "$work/checkpoints/demo-model"
cp "$model"/{config.json,generation_config.json,tokenizer.json} "$work/checkpoints/demo-model"
# Documents end with the tokenizer's end of text; the served model's is the end of a chat's turn.
sed 's/"eos_token": "<|im_end|>"/"eos_token": "<|endoftext|>"/' "$model/tokenizer_config.json" >"$work/checkpoints/demo-model/tokenizer_config.json"
"$bin/switchyard-server" --model="$model" --port="$port" --http_port=-1 --metrics_port=-1 --local_workers=1 --threads=1 \
  --local_train_workers=1 --train_threads="${THREADS:-$(nproc)}" --dataset_root="$work/data" --checkpoint_root="$work/checkpoints" >"$work/server.log" 2>&1 &
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
  cli train watch "$job" --interval="${INTERVAL:-10}"
  folder=$job/$(cut -d ' ' -f 1 "$work/checkpoints/$job/LATEST")
  logs+=("$work/checkpoints/$job/log/steps.csv")
}
logs=()
run_job job
run_job job_end --base_checkpoint="$folder"
cp "$work/checkpoints/$folder"/model*.safetensors "$model/model.safetensors"
echo "$work/checkpoints/$folder/ serves; its weights are in $model.  evaluate.py --log ${logs[*]} shows the loss"
