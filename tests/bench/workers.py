"""Two Switchyard workers of one thread each beside one worker of two threads: prefill of 512 tokens and decode at batch
1 and 16 of an OLMoE-shaped model with random bf16 weights, as a gRPC client sees them.
A sequence lives on one rank, which gives half of a long prompt's rows to the other (all but their attention).  Two
prompts at once, one for each rank, are measured, too.
two_workers_* are the rates of two workers over those of one.  host_memory is the memory of two workers over that of one,
with the same KV cache in all, here and for the demo model.

Needs the Python packages torch and safetensors (the checkpoint); transformers to check the number of exchanged rows.
Both servers are up and take turns; the figures are medians over the rounds of ratios within a round.
Checked: both give the same greedy tokens; one worker exchanges nothing; two exchange, for each prompt, as many expert
rows as HF's routing of the same ids sends away from the rank that computes the row: the rank that holds the sequence
(answers do not say which) for the first half of a prompt, the other one for the second half.
"""
import random
import statistics
import sys

import olmoe_checkpoint as shape
import report
from switchyard_engine import Switchyard

PROMPT, BATCH, DECODE_TOKENS = 128, 16, 16
TARGET, MEMORY_TARGET = 0.75, 1.1
KV_CACHE_BYTES = 512 << 20  # of all workers of a server
EXCHANGED = "switchyard_moe_tokens_exchanged_total"
# HF computes the routers' inputs with other roundings: where two experts are nearly even it may pick the other one.
ROWS_TOLERANCE = 0.01


def random_ids(count, seed):
    source = random.Random(seed)
    return [source.randrange(3, shape.EOS) for _ in range(count)]


def skewed_ids(count, seed):
    """Few different tokens, so that the two ranks' shares differ and a wrong sum shows."""
    return [random_ids(3, seed)[i % 3] for i in range(count)]


def check_tokens(one, two):
    prompts = [random_ids(PROMPT, seed) for seed in range(BATCH)]
    answers = [[answer["token_ids"] for answer in engine.generate(prompts, DECODE_TOKENS)] for engine in (one, two)]
    if answers[0] != answers[1]:
        sys.exit("workers.py: two servers give different tokens")
    report.log(f"two servers: the same {BATCH * DECODE_TOKENS} greedy tokens")


def leaving(routing, num_ids, home):
    """Expert rows that leave the rank that computes them: `home` has the first half of the ids, the other the rest."""
    count = 0
    for layer in routing:
        for position, row in enumerate(layer):
            rank = home if position < num_ids // 2 else 1 - home
            count += sum((expert >= shape.EXPERTS // 2) != bool(rank) for expert in row)
    return count


def check_rows(one, two, checkpoint):
    """Returns the exchanged rows counted, and their largest relative difference from the routing; None without HF."""
    try:
        from peer_engines import HfPeer

        hf = HfPeer(checkpoint, 2)
    except ImportError as error:
        report.log(f"exchanged rows not compared with routing: no Python package {error.name}")
        return None, None
    counted, worst = 0, 0.0
    for seed, make in ((1, random_ids), (2, skewed_ids), (3, skewed_ids), (4, skewed_ids)):
        ids = make(256, 5000 + seed)
        before = two.metric(EXCHANGED)
        two.generate([ids], 1)
        rows = two.metric(EXCHANGED) - before
        _, _, routing = hf.logprobs_and_routing(ids, [0])
        expected = [leaving(routing, len(ids), home) for home in (0, 1)]
        off = min(abs(rows - e) for e in expected) / sum(len(row) for layer in routing for row in layer)
        report.log(f"exchanged {rows:.0f} rows; routing: {expected[0]} if rank 0 holds the prompt, {expected[1]} if rank 1")
        counted, worst = counted + int(rows), max(worst, off)
    hf.close()
    if worst > ROWS_TOLERANCE:
        sys.exit(f"workers.py: exchanged rows differ from the routing by {worst:.2%} of all rows")
    if one.metric(EXCHANGED) != 0:
        sys.exit("workers.py: one worker exchanged rows")
    return counted, worst


def measure(engines, rounds, rate):
    """[round] of {engine: rate}; who goes first changes from round to round."""
    out = []
    for i in range(rounds + 1):
        order = engines[i % len(engines):] + engines[:i % len(engines)]
        out.append({engine: rate(engine, i) for engine in order})
    return out[1:]  # the first warms up


def start(args, model, name, workers):
    return Switchyard(args.bin, model, f"{args.cache}/{name}.log", workers=workers, threads=2 // workers,
                      kv_cache_bytes=KV_CACHE_BYTES // workers)


def demo_memory(args):
    """The memory of two workers over one worker's, of the demo model."""
    demo, used = report.ROOT / "deploy/demo-model", []
    for workers in (1, 2):
        with start(args, demo, f"demo-{workers}", workers) as engine:
            engine.generate([[3 + (7 * i + seed) % 4000 for i in range(PROMPT)] for seed in range(BATCH)], DECODE_TOKENS)
            used.append(engine.worker_memory())
    report.log(f"demo model: one worker {used[0] >> 20} MiB, two {used[1] >> 20} MiB")
    return used[1] / used[0]


def main():
    args = report.arguments(__doc__)
    report.require("torch", "safetensors")
    decode_rounds, prefill_rounds = (3, 2) if args.quick else (20, 10)
    checkpoint = shape.ensure_hf(args.cache, report.log)
    prompts = [random_ids(PROMPT, seed) for seed in range(BATCH)]
    memory = {"host_memory_demo": demo_memory(args)}
    with start(args, checkpoint, "one-worker", 1) as one, start(args, checkpoint, "two-workers", 2) as two:
        check_tokens(one, two)
        rows, worst = check_rows(one, two, checkpoint)
        load = [report.load_average()]
        engines = [one, two]
        results = {
            "prefill": measure(engines, prefill_rounds, lambda engine, i: engine.prefill_rate(random_ids(512, 2000 + i))),
            "prefill_2x512": measure(
                engines, prefill_rounds,
                lambda engine, i: engine.prefill_rate(random_ids(512, 3000 + 2 * i), random_ids(512, 3001 + 2 * i))),
            "b1": measure(engines, decode_rounds, lambda engine, i: engine.decode_rate(prompts[:1], DECODE_TOKENS)),
            "b16": measure(engines, decode_rounds, lambda engine, i: engine.decode_rate(prompts, DECODE_TOKENS)),
        }
        load.append(report.load_average())
        used = {name: engine.worker_memory() for name, engine in (("one", one), ("two", two))}
        memory["host_memory"] = used["two"] / used["one"]
    figures = {}
    for key, pairs in results.items():
        figures[f"two_workers_{key}"] = statistics.median(rates[two] / rates[one] for rates in pairs)
    report.table([["tokens/s", "one worker, 2 threads", "two workers, 1 thread each", "ratio"]] +
                 [[key, *(statistics.median(rates[engine] for rates in pairs) for engine in engines),
                   figures[f"two_workers_{key}"]] for key, pairs in results.items()])
    print("memory of the workers: " + ", ".join(f"{name} {size >> 20} MiB" for name, size in used.items()))
    for key in ("two_workers_prefill", "two_workers_b16"):
        if figures[key] < TARGET:
            print(f"missed: {key} {figures[key]:.3f} < {TARGET}")
    for key, value in memory.items():
        if value > MEMORY_TARGET:
            print(f"missed: {key} {value:.3f} > {MEMORY_TARGET}")
    report.finish("workers", figures | memory, {
        "rows_exchanged": rows, "rows_off_routing": worst and round(worst, 5),
        "rounds": {"prefill": prefill_rounds, "decode": decode_rounds}, "load": load})


if __name__ == "__main__":
    main()
