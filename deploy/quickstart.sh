#!/usr/bin/env bash
# From nothing to streaming text: installs packages, builds (for CUDA, too, where it sees a GPU), starts the server with two
# CPU workers (or a worker on each of up to two GPUs) on the demo model, sends three prompts, and keeps serving until Ctrl-C.
#   --once           stop after the prompts
#   --model=DIR      serve this checkpoint instead of the demo model
#   --port=N --metrics_port=N  (default 50051 and 9464)
set -euo pipefail
cd "$(dirname "$0")/.."

once=0 model=deploy/demo-model port=50051 metrics_port=9464
for arg in "$@"; do
  case "$arg" in
    --once) once=1 ;;
    --model=*) model=${arg#*=} ;;
    --port=*) port=${arg#*=} ;;
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
deploy/build.sh "${options[@]}" switchyard-server switchyard-worker switchyard
bin=build/release/bin
where=(--local_workers=2)
if deploy/sees_gpu.sh && grep -q 'CUDA: built for' build/release/configure.log; then
  where=(--device=cuda --local_workers=$(($(deploy/sees_gpu.sh --count) > 1 ? 2 : 1)))
fi

log=build/quickstart.log
"$bin/switchyard-server" --model="$model" "${where[@]}" --port="$port" --metrics_port="$metrics_port" 2>"$log" &
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
ask() {
  printf '\n%s> %s%s\n' "$bold" "$1" "$plain"
  "$bin/switchyard" generate --server="127.0.0.1:$port" --text="$1" --max_tokens=80
}
ask "In the beginning"
ask "def read_file(path):"
ask "NAME
       ls - list"

printf '\ngRPC     127.0.0.1:%s   (%s chat --server=127.0.0.1:%s)\n' "$port" "$bin/switchyard" "$port"
printf 'metrics  http://127.0.0.1:%s/metrics\nlog      %s\n' "$metrics_port" "$log"
[ "$once" -eq 1 ] && exit 0
printf 'serving until Ctrl-C\n'
wait "$server"
