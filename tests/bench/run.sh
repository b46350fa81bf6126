#!/usr/bin/env bash
# Runs one benchmark: builds what it needs, prints a table, ends with one line of JSON.
# usage: tests/bench/run.sh NAME [--quick]    (without a name: the list); without a GPU `gpu` says so and ends with status 77
# gemm, peers, workers, micro_batches, loading, larger_than_memory, pairs and over_pytorch run on $PYTHON (default python3); what packages they need: tests/bench/README.md
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
  echo "benchmarks:"
  echo "  gemm    matrix products and grouped experts beside oneDNN (PyTorch's where this was built without) and a read-bandwidth probe"
  echo "  peers   prefill and decode of an OLMoE-shaped model beside HF transformers and llama.cpp, as gRPC clients see them"
  echo "  workers two one-core workers beside one two-core worker: speed and memory"
  echo "  micro_batches  two one-core workers on links of 1 Gb/s and on loopback: prefill with rows cut into micro-batches, as trials choose (--fixed=2,4)"
  echo "  pairs   this build beside another (--before=ITS_BUILD_DIR): prefill, decode, two workers and training steps, in turns; the same answers"
  echo "  popularity how right each estimator of the next layer's experts is on recorded routing (--fit=FILE --test=FILE) or tuned chains (--chain)"
  echo "  placement modes of expert placement on 4, 8 or 16 workers in network namespaces with shaped links (--trace=FILE --fit=FILE: routing of your own; --only PART…: a part of the table)"
  echo "  serve_placement modes of expert placement on 8 real workers of one core each, in seconds that a gRPC client sees (--workers --batches --modes)"
  echo "  offload expert caches at a budget of device slots, by the simulator: our policy beside lru, lfu, static, belady"
  echo "  larger_than_memory models of which a half or a quarter of the experts fits: decode and prefill beside llama.cpp's mapped files and our LRU"
  echo "  training modes of communication in training on 4, 8 and 16 workers in network namespaces with shaped two-tier links; --only trainers_2 trainers_4 trainers_2_20 … trainers_4_60: of real trainers, these on links of which so many per cent of ar_last's step are exposed (--only PART…, --merge)"
  echo "  schedules programs of MoE layers (FastMoE, FasterMoE, MPMoE, Parm) on 8 and 16 workers in network namespaces with shaped two-tier links, beside the simulator (--only PART…, --merge)"
  echo "  memory what a MoE layer's buffers take in training with S1 to S4, beside MPMoE's formulas (--rows=64)"
  echo "  simulate rows of the papers (Parm, MPMoE, Lina's inference) by the simulator, up to 256 GPUs, beside the published values; --svg=DIR: their figures"
  echo "  constraints  time between tokens at batch 16 with one or all outputs constrained beside none (--before=ITS_BUILD_DIR/bin), and what masks cost at a vocabulary of 128000"
  echo "  train_slices  training on workers that serve: how soon it makes way, and what requests pay (--rate=1 --seconds=20 --rounds=4)"
  echo "  over_pytorch  training steps beside PyTorch eager, grouped_mm, compiled and a script; of one worker, of a larger model, of two workers beside DDP (--only=one|168m|ddp; --dtype=fp32; --model=DIR; --wait=spin)"
  echo "  overtake how long an all-to-all takes beside a long sum: over connections that both share, and on connections on which it goes first (--mbit=1000 --ranks=4)"
  echo "  pack    training text to packed tokens, with the demo model's tokenizer ([FILE.jsonl])"
  echo "  http_over_grpc  the same streams over gRPC and over HTTP, in turns (--pairs=9 --seconds=1.5 --streams=1,8,32)"
  echo "  kv_cache      bits per byte and decode speed of keys and values in 8 bits beside the data type (--model=DIR --context=N)"
  echo "  adapters      decode with 0, 1 and 8 adapters of --adapters in a batch, beside a server without (--model=DIR --rank=16 --batch=8)"
  echo "  quantization  bits per byte and speed of weights of 8 and 4 bits beside none (--model=DIR --text=FILE.jsonl)"
  echo "  loading seconds, memory and tokens/s of a checkpoint of gpt-oss-20b's shape, as published and as GGUF (--layers=24 --form published gguf plain)"
  echo "  gpu     CUDA kernels beside cuBLAS and SDPA, MoE layers beside PyTorch's and vLLM's, and models, on a GPU (--pack=FILE --minutes=9)"
}
name=${1:-}
[ -n "$name" ] || { usage; exit 2; }
shift
case "$name" in
  gemm) deploy/install-deps.sh; deploy/build.sh gemm_bench; exec "${PYTHON:-python3}" -B tests/bench/gemm.py "$@" ;;
  popularity)
    deploy/install-deps.sh; deploy/build.sh popularity_bench; exec build/release/bin/popularity_bench "$@" ;;
  offload) deploy/install-deps.sh; deploy/build.sh offload_bench; exec build/release/bin/offload_bench "$@" ;;
  placement)
    deploy/install-deps.sh; deploy/build.sh placement_worker popularity_bench decision_bench switchyard-server switchyard-worker switchyard
    exec "${PYTHON:-python3}" -B tests/bench/placement.py "$@" ;;
  peers|workers|larger_than_memory|serve_placement|micro_batches|quantization|kv_cache|adapters|loading) deploy/install-deps.sh; deploy/build.sh switchyard-server switchyard-worker switchyard; exec "${PYTHON:-python3}" -B "tests/bench/$name.py" "$@" ;;
  pairs) deploy/install-deps.sh; deploy/build.sh switchyard-server switchyard-worker switchyard train_step_bench; exec "${PYTHON:-python3}" -B tests/bench/pairs.py "$@" ;;
  training) deploy/install-deps.sh; deploy/build.sh training_worker training_rank_bench; exec "${PYTHON:-python3}" -B tests/bench/training.py "$@" ;;
  schedules) deploy/install-deps.sh; deploy/build.sh schedule_worker simulate_bench; exec "${PYTHON:-python3}" -B tests/bench/schedules.py "$@" ;;
  memory) deploy/install-deps.sh; deploy/build.sh memory_bench; exec build/release/bin/memory_bench "$@" ;;
  simulate) deploy/install-deps.sh; deploy/build.sh simulate_bench; exec build/release/bin/simulate_bench --papers "$@" ;;
  train_slices) deploy/install-deps.sh; deploy/build.sh switchyard-server switchyard-worker switchyard; exec "${PYTHON:-python3}" -B tests/bench/train_slices.py "$@" ;;
  constraints)
    deploy/install-deps.sh; deploy/build.sh switchyard-server switchyard-worker switchyard constraint_masks_bench
    build/release/bin/constraint_masks_bench; exec "${PYTHON:-python3}" -B tests/bench/constraints.py "$@" ;;
  over_pytorch) deploy/install-deps.sh; deploy/build.sh train_step_bench; exec "${PYTHON:-python3}" -B tests/bench/over_pytorch.py "$@" ;;
  overtake) deploy/install-deps.sh; deploy/build.sh overtake_bench; exec "${PYTHON:-python3}" -B tests/bench/overtake.py "$@" ;;
  pack) deploy/install-deps.sh; deploy/build.sh pack_bench; exec build/release/bin/pack_bench "$@" ;;
  http_over_grpc) deploy/install-deps.sh; deploy/build.sh http_over_grpc switchyard-server switchyard-worker; exec build/release/bin/http_over_grpc "$@" ;;
  gpu) exec tests/bench/gpu/run.sh "$@" ;;
  *) echo "run.sh: no benchmark $name" >&2; usage >&2; exit 2 ;;
esac
