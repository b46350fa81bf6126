"""Two Switchyard workers of one thread each beside one worker of two threads: prefill of 512 tokens and decode at batch
1 and 16 of an OLMoE-shaped model with random bf16 weights, as a gRPC client sees them.
A sequence lives on one rank, which gives half of a long prompt's rows to the other (all but their attention).  Two
prompts at once, one for each rank, are measured, too.
two_workers_* are the rates of two workers, each of which computes its own experts (--placement=static), over those of one.
in_place_* are those of two workers that read each other's experts where that is faster (the default) over the former, here
and for the demo model.  host_memory is the memory of two workers in place over that of one, with the same KV cache in all.

Needs the Python packages torch and safetensors (the checkpoint); transformers to check the number of exchanged rows.
All servers are up and take turns; the figures are medians over the rounds of ratios within a round.
Checked: all give the same greedy tokens; one worker exchanges nothing; two exchange, for each prompt, as many expert
rows as HF's routing of the same ids sends away from the rank that computes the row: the rank that holds the sequence
(answers do not say which) for the first half of a prompt, the other one for the second half.
"""
import contextlib
import random
import statistics
import sys

import olmoe_checkpoint as shape
import report
from switchyard_engine import Switchyard

PROMPT, BATCH, DECODE_TOKENS = 128, 16, 16
TARGET, MEMORY_TARGET, IN_PLACE_TARGET = 0.75, 1.1, 0.98
WARM_UP = 32  # prompts of each kind: the trials of placement and of cuts
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


def check_tokens(engines, prompts):
    answers = [[answer["token_ids"] for answer in engine.generate(prompts, DECODE_TOKENS)] for engine in engines]
    if any(answer != answers[0] for answer in answers):
        sys.exit("workers.py: servers give different tokens")
    report.log(f"{len(engines)} servers: the same {BATCH * DECODE_TOKENS} greedy tokens")


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


@contextlib.contextmanager
def servers(args, model, name):
    """One worker; two, each with its experts; two with all in place."""
    def start(kind, workers, *flags):
        return Switchyard(args.bin, model, f"{args.cache}/{name}-{kind}.log", workers=workers, threads=2 // workers, flags=flags,
                          kv_cache_bytes=KV_CACHE_BYTES // workers)
    with start("one", 1) as one, start("two", 2, "--placement=static") as two, start("in-place", 2) as in_place:
        yield [one, two, in_place]


def rates(engines, args, prompts, ids):
    """The measurements of all servers: [round] of {engine: rate}, by what is measured."""
    decode_rounds, prefill_rounds = (3, 2) if args.quick else (20, 10)
    for engine in engines[1:]:
        for i in range(4 if args.quick else WARM_UP):
            engine.prefill_rate(ids(512, 800 + i))
            engine.prefill_rate(ids(512, 900 + i), ids(512, 950 + i))
        for _ in range(3):  # many steps each
            engine.decode_rate(prompts[:1], DECODE_TOKENS)
            engine.decode_rate(prompts, DECODE_TOKENS)
    return {
        "prefill": measure(engines, prefill_rounds, lambda engine, i: engine.prefill_rate(ids(512, 2000 + i))),
        "prefill_2x512": measure(engines, prefill_rounds,
                                 lambda engine, i: engine.prefill_rate(ids(512, 3000 + 2 * i), ids(512, 3001 + 2 * i))),
        "b1": measure(engines, decode_rounds, lambda engine, i: engine.decode_rate(prompts[:1], DECODE_TOKENS)),
        "b16": measure(engines, decode_rounds, lambda engine, i: engine.decode_rate(prompts, DECODE_TOKENS)),
    }


def show(name, engines, results, figures):
    """Prints rates and adds figures of them."""
    one, two, in_place = engines
    rows = [[f"{name.strip('_') or 'OLMoE shape'}, tokens/s", "one worker, 2 threads", "two, 1 thread each", "two, in place", "two over one", "in place over two"]]
    for key, pairs in results.items():
        ratios = [statistics.median(rates[a] / rates[b] for rates in pairs) for a, b in ((two, one), (in_place, two))]
        figures[f"two_workers_{key}{name}"], figures[f"in_place_{key}{name}"] = ratios
        rows.append([key, *(statistics.median(rates[engine] for rates in pairs) for engine in engines), *ratios])
    report.table(rows)
    used = [engine.worker_memory() for engine in engines]
    figures[f"host_memory{name}"] = used[2] / used[0]
    print("memory of the workers, MiB: " + ", ".join(f"{size >> 20}" for size in used))


def demo_ids(count, seed):
    source = random.Random(seed)
    return [source.randrange(3, 4000) for _ in range(count)]


def main():
    args = report.arguments(__doc__)
    report.require("torch", "safetensors")
    checkpoint = shape.ensure_hf(args.cache, report.log)
    load, figures = [report.load_average()], {}
    for name, model, ids in (("_demo", report.ROOT / "deploy/demo-model", demo_ids), ("", checkpoint, random_ids)):
        prompts = [ids(PROMPT, seed) for seed in range(BATCH)]
        with servers(args, model, f"workers{name}") as engines:
            check_tokens(engines, prompts)
            if name == "":
                rows, worst = check_rows(engines[0], engines[1], checkpoint)
            show(name, engines, rates(engines, args, prompts, ids), figures)
    load.append(report.load_average())
    for key in ("two_workers_prefill", "two_workers_b16"):
        if figures[key] < TARGET:
            print(f"missed: {key} {figures[key]:.3f} < {TARGET}")
    for key in figures:
        if key.startswith("in_place_") and figures[key] < IN_PLACE_TARGET:
            print(f"missed: {key} {figures[key]:.3f} < {IN_PLACE_TARGET}")
    for key in ("host_memory", "host_memory_demo"):
        if figures[key] > MEMORY_TARGET:
            print(f"missed: {key} {figures[key]:.3f} > {MEMORY_TARGET}")
    report.finish("workers", figures, {
        "rows_exchanged": rows, "rows_off_routing": worst and round(worst, 5), "quick": args.quick, "load": load})


if __name__ == "__main__":
    main()
