#!/usr/bin/env bash
# From nothing to streaming text: installs packages, builds (for CUDA, too, where it sees a GPU), starts the server with two
# CPU workers (or a worker on each of up to two GPUs) on the demo model, asks it three questions, and keeps serving until Ctrl-C.
#   --once           stop after the prompts
#   --model=DIR      serve this checkpoint instead of the demo model
#   --port=N --http_port=N --metrics_port=N  (default 50051, 8000 or any free one, and 9464)
set -euo pipefail
cd "$(dirname "$0")/.."

demo=deploy/demo-model
once=0 model=$demo port=50051 http_port=0 metrics_port=9464
for arg in "$@"; do
  case "$arg" in
    --once) once=1 ;;
    --model=*) model=${arg#*=} ;;
    --port=*) port=${arg#*=} ;;
    --http_port=*) http_port=${arg#*=} ;;
    --metrics_port=*) metrics_port=${arg#*=} ;;
    -h|--help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "quickstart.sh: unknown argument $arg (see --help)" >&2; exit 2 ;;
  esac
done

needs=() options=(-DSY_CUDA=OFF)
if deploy/sees_gpu.sh; then
  cuda=$(deploy/sees_gpu.sh --toolkit)  # that the driver runs
  needs=(--cuda="$cuda") options=(-DSY_CUDA=AUTO -USY_CUDA_ARCHS -DSY_CUDA_AT_MOST="$cuda")
fi
deploy/install-deps.sh "${needs[@]}" || [ $? -eq 3 ]  # 3: all but the CUDA toolkit
[ -e build/release/build.ninja ] || echo "building, which takes 10 to 30 minutes the first time and seconds later"
deploy/build.sh "${options[@]}" switchyard-server switchyard-worker switchyard
bin=build/release/bin
where=(--local_workers=2)
if deploy/sees_gpu.sh && grep -q 'CUDA: built for' build/release/configure.log; then
  where=(--device=cuda --local_workers=$(($(deploy/sees_gpu.sh --count) > 1 ? 2 : 1)))
fi

log=build/quickstart.log
: >"$log"  # an earlier run's says that it listens
echo "starting the server on $model"
"$bin/switchyard-server" --model="$model" "${where[@]}" --port="$port" --http_port="$http_port" --metrics_port="$metrics_port" 2>"$log" &
server=$!
stop() {
  trap - EXIT INT TERM
  kill -TERM "$server" ${waiter:+"$waiter"} 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

# Waits until the server listens, so that `status` does not call it unreachable.
while kill -0 "$server" 2>/dev/null && ! grep -q ' gRPC on ' "$log"; do sleep 0.05; done

# A large checkpoint takes long to load; `status` shows the progress.  Stops waiting if the server ends.
"$bin/switchyard" status --server="127.0.0.1:$port" --wait=3600 >/dev/null &
waiter=$!
while kill -0 "$server" 2>/dev/null && kill -0 "$waiter" 2>/dev/null; do sleep 0.05; done
kill -0 "$server" 2>/dev/null || kill "$waiter" 2>/dev/null || true
if ! wait "$waiter" || ! kill -0 "$server" 2>/dev/null; then
  cat "$log" >&2
  echo "quickstart.sh: the server did not become ready" >&2
  exit 1
fi
waiter=

bold='' plain=''
[ ! -t 1 ] || bold=$'\033[1m' plain=$'\033[0m'
# $1: the prompt, a question to the demo model's chat, or a text for any other model to go on with.
ask() {
  local prompt="--text=$1"
  [ "$model" != "$demo" ] || prompt="--messages=[{\"role\": \"user\", \"content\": \"$1\"}]"
  printf '\n%s> %s%s\n' "$bold" "$1" "$plain"
  "$bin/switchyard" generate --server="127.0.0.1:$port" "$prompt" --max_tokens=200 --temperature=0
}
ask "What is the capital of France?"
ask "Write a Python function that adds two numbers."
ask "Tell me a story about a fox."

[ "$once" -eq 0 ] || exit 0

# Where it listens stands in its log.
http=$(sed -n 's/.* HTTP on \([^ ,;]*\).*/\1/p' "$log" | head -n 1)
at=()
[ "$port" -eq 50051 ] || at=(" --server=127.0.0.1:$port")
cat <<END

${bold}The server runs${plain} on $model, until Ctrl-C.
  web page  $http/  (OpenAI's API: $http/v1)
  gRPC      127.0.0.1:$port
  metrics   http://127.0.0.1:$metrics_port/metrics
  log       $log

${bold}Try${plain} in another terminal:
  $bin/switchyard chat${at[*]}
  $bin/switchyard status${at[*]}
  curl $http/v1/completions -d '{"prompt": "Once upon a time", "max_tokens": 32}'
END
if [ "$model" = "$demo" ]; then
  memory=$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
  cat <<END

${bold}The demo model is a toy${plain}: it shows that everything works, and not what a model can do.  A real one to try next:
END
  # What its bf16 weights take, and room for the KV cache.
  if [ "$memory" -ge 72 ]; then
    cat <<END
  hf download Qwen/Qwen3-30B-A3B --local-dir models/Qwen3-30B-A3B   # 61 GB; $memory GiB of memory are free here
  $bin/switchyard-server --model=models/Qwen3-30B-A3B
END
  else
    options=''
    [ "$memory" -ge 16 ] || options=' --expert_memory=25%   # which keeps a quarter of the experts in memory'
    cat <<END
  hf download allenai/OLMoE-1B-7B-0924-Instruct --local-dir models/OLMoE-1B-7B   # 14 GB; $memory GiB of memory are free here
  $bin/switchyard-server --model=models/OLMoE-1B-7B$options
END
  fi
  echo '(hf comes with: pip install huggingface_hub)'
fi
wait "$server"
