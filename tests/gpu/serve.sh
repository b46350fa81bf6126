#!/usr/bin/env bash
# Serves a model from a GPU as its users do, over gRPC, and compares greedy answers with the CPU's and with themselves; then measures.  A line
# of JSON for each part; status 1 if an answer differs that must not.
# usage: tests/gpu/serve.sh [--pack=FILE|DIR (build/gpu/serve.tar.xz)] [--bin=DIR] [--emulated] [--prompts=120] [--max_tokens=48] [--no_bench]
#   --pack      what pack.sh --serve made        --bin   programs that were built here
#   --emulated  the worker over the emulation of CUDA (with --bin)
# In $OUT (default build/gpu/out): serve.jsonl, and serve.log, what the servers said.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/gpu/libraries.sh
pack=build/gpu/serve.tar.xz bin= worker=switchyard-worker prompts=120 max_tokens=48 bench=1
for argument in "$@"; do
  case "$argument" in
    --pack=*) pack=${argument#*=} ;;
    --bin=*) bin=${argument#*=} ;;
    --emulated) worker=switchyard-worker-emulated ;;
    --prompts=*) prompts=${argument#*=} ;;
    --max_tokens=*) max_tokens=${argument#*=} ;;
    --no_bench) bench=0 ;;
    *) echo "serve.sh: cannot take $argument" >&2; exit 2 ;;
  esac
done
out=${OUT:-build/gpu/out} scratch=$(mktemp -d) server=
mkdir -p "$out"
stop() {
  [ -z "$server" ] || { kill -TERM "$server" 2>/dev/null; wait "$server" 2>/dev/null; }
  server=
}
trap 'stop; tail -n 400 "$scratch"/*.log >"$out/serve.log" 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'exit 143' TERM INT
if [ -z "$bin" ]; then
  pack=$(unpack "$pack" "$scratch") || { echo "serve.sh: no pack" >&2; exit 2; }
  find_libraries "$pack/cuda_libraries.txt"
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$pack/lib"
  bin=$pack/bin
fi

# Lines of this project's pages: text that the demo model never saw.
cat ./*.md scheduler/*.md | grep -E '.{40}' | awk '!seen[$0]++' | awk -v n="$prompts" 'NR % 5 == 1 && ++taken <= n' |
  python3 -c 'import json, sys
for line in sys.stdin: print(json.dumps({"text": line.rstrip("\n")[:200]}))' >"$scratch/prompts.jsonl"

port=50151
exec > >(tee "$out/serve.jsonl")
# start NAME FLAGS...: a server with one local worker; returns when it is ready.
start() {
  local name=$1 began=${EPOCHREALTIME/[^0-9]/}
  shift
  stop
  "$bin/switchyard-server" --port=$port --metrics_port=-1 --worker_binary="$bin/$worker" "$@" 2>"$scratch/$name.log" &
  server=$!
  while kill -0 $server 2>/dev/null && ! grep -q ' gRPC on ' "$scratch/$name.log"; do sleep 0.05; done
  # While it lives: another server may have the port.
  until "$bin/switchyard" status --server=127.0.0.1:$port --wait=5 >/dev/null 2>&1; do
    kill -0 $server 2>/dev/null || break
  done
  kill -0 $server 2>/dev/null || { tail -n 20 "$scratch/$name.log" >&2; return 1; }
  printf '{"part": "start", "what": "%s", "milliseconds": %d}\n' "$name" $(((${EPOCHREALTIME/[^0-9]/} - began) / 1000))
}
answers() {  # NAME CONCURRENCY
  "$bin/switchyard" generate --server=127.0.0.1:$port --input="$scratch/prompts.jsonl" --concurrency="$2" --temperature=0 \
    --max_tokens="$max_tokens" --json 2>>"$scratch/clients.log" |
    python3 -c 'import json, sys
for line in sys.stdin: print(json.loads(line).get("token_ids"))' >"$scratch/$1"
}
failed=0
compare() {  # A B MUST: lines of answers; MUST 1: all have to be equal
  local all equal
  all=$(wc -l <"$scratch/prompts.jsonl")
  equal=$(paste -d'\n' "$scratch/$1" "$scratch/$2" | awk 'NR % 2 { a = $0; next } a == $0 && a ~ /[0-9]/ { ++n } END { print n + 0 }')
  printf '{"part": "answers", "what": "%s", "beside": "%s", "equal": %d, "of": %d, "must": %s}\n' "$1" "$2" "$equal" "$all" "$3"
  [ "$3" = 0 ] || { [ "$equal" = "$all" ] && [ "$all" -gt 0 ]; } || failed=1
}
measure() {  # NAME CONCURRENCY REQUESTS
  local result
  result=$("$bin/switchyard" bench --server=127.0.0.1:$port --concurrency="$2" --num_requests="$3" --prompt_tokens=128 --max_tokens=128 \
    --json 2>>"$scratch/clients.log") || { result=null failed=1; }
  printf '{"part": "bench", "what": "%s", "concurrency": %d, "result": %s}\n' "$1" "$2" "$result"
}

demo=(--model=deploy/demo-model --max_num_seqs=16)
start cpu32 "${demo[@]}" --dtype=fp32 && answers cpu32 16 || failed=1
start cuda32 "${demo[@]}" --dtype=fp32 --device=cuda --deterministic && answers cuda32 16 && compare cuda32 cpu32 1 || failed=1
start cuda16 "${demo[@]}" --device=cuda --deterministic && answers one 1 && answers many 16 && compare many one 1 && compare many cpu32 0 || failed=1
start half "${demo[@]}" --device=cuda --deterministic --expert_memory=50% && answers half 16 && compare half one 1 || failed=1
start fast "${demo[@]}" --device=cuda && answers fast 16 && compare fast one 0 || failed=1
if [ $bench = 1 ]; then
  measure demo 1 16
  measure demo 16 64
  mkdir "$scratch/olmoe"
  cat >"$scratch/olmoe/config.json" <<'JSON'
{"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
 "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
 "attention_bias": false, "clip_qkv": null, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false, "tie_word_embeddings": false, "eos_token_id": 50279,
 "torch_dtype": "bfloat16"}
JSON
  if start olmoe --model="$scratch/olmoe" --load_format=dummy --device=cuda --max_num_seqs=64; then
    for load in '1 4' '8 16' '32 64'; do measure OLMoE-1B-7B $load; done
  else
    failed=1
  fi
fi
stop
exit $failed
