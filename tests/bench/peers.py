"""Switchyard beside HF transformers and llama.cpp: prefill of 512 tokens and decode at batch 1 and 16
of an OLMoE-shaped model with random bf16 weights, on two threads each, fed the same token ids; then of the same weights
in 8 and 4 bits beside llama.cpp's Q8_0, Q4_0 and Q4_K_M (few_bits.py).  --only=bf16 or few_bits: one of the two.

Needs the Python packages numpy, torch and safetensors; transformers to compare with HF and to check the answers;
llama-cpp-python and gguf to compare with llama.cpp.  A peer that is not installed is skipped, and the table says so.
Switchyard's rates are what a gRPC client sees; the peers' are measured inside their process.  Engines take turns, with
a read-bandwidth probe between; the figures are medians over the rounds of ratios within a round.
"""
import random
import statistics
import sys

import few_bits
import olmoe_checkpoint as shape
import peer_engines
import report
import roofline
from switchyard_engine import Switchyard

THREADS = 2
PROMPT = 128
DECODE_TOKENS = 16   # of Switchyard and of its answers' check
PEER_TOKENS = 6      # a peer repeats the first of them each round
BATCHES = {"decode_b1": 1, "decode_b16": 16}
TARGETS = {"prefill512": 1.3, "decode_b1": 1.0, "decode_b16": 1.3, "decode_b1_bound": 0.85, "decode_b16_bound": 0.85}
# bf16 arithmetic differs in its last bits between engines, and a token at the edge between two experts may take the
# other one: single log probabilities may be off, most may not.
MEDIAN_TOLERANCE, WORST_TOLERANCE = 0.03, 0.5


def random_ids(count, seed):
    source = random.Random(seed)
    return [source.randrange(3, shape.EOS) for _ in range(count)]


def check_answers(answers, prompts, hf):
    """Compares with HF's logits after the same tokens; returns HF's rows per touched expert, [step][layer]."""
    errors, same, routing = [], 0, []
    for prompt, answer in zip(prompts, answers):
        logprobs, experts, _ = hf.logprobs_and_routing(prompt, answer["token_ids"])
        for step, (token, ours) in enumerate(zip(answer["token_ids"], answer["logprobs"])):
            errors.append(abs(ours["logprob"] - float(logprobs[step, token])))
            same += int(logprobs[step].argmax()) == token
        routing.append(experts)
    share = same / len(errors)
    report.log(f"answers of batch {len(prompts)}: log probabilities differ from HF's by "
               f"{statistics.median(errors):.4f} (median), {max(errors):.4f} (worst); "
               f"{share:.1%} of {len(errors)} greedy tokens are HF's, too")
    if statistics.median(errors) > MEDIAN_TOLERANCE or max(errors) > WORST_TOLERANCE or share < peer_engines.SAME_TOKEN_SHARE:
        sys.exit("peers.py: the answers are not the model's")
    return [[roofline.routed_rows([sequence[layer][step] for sequence in routing]) for layer in range(shape.LAYERS)]
            for step in range(1, DECODE_TOKENS)]


def prepare(engine, hf):
    """The prompts, Switchyard's answers to them, and the operations of each decode step, per batch size."""
    work = {}
    for key, batch in BATCHES.items():
        prompts = [random_ids(PROMPT, seed) for seed in range(batch)]
        answers = engine.generate(prompts, DECODE_TOKENS)
        if hf:
            steps = check_answers(answers, prompts, hf)
        else:
            report.log("answers not compared: no transformers; experts touched are those expected of uniform routing")
            steps = [[roofline.uniform_rows(batch)] * shape.LAYERS] * (DECODE_TOKENS - 1)
        ops = [roofline.decode_ops(batch, PROMPT + 1 + i, layers) for i, layers in enumerate(steps)]
        work[key] = {"prompts": prompts, "tokens": [answer["token_ids"] for answer in answers], "ops": ops,
                     "touched": statistics.mean(len(layer) for layers in steps for layer in layers)}
    first = [work[key]["tokens"][0] for key in BATCHES]
    if first[0] != first[1]:
        sys.exit(f"peers.py: alone and in a batch of 16 the same prompt got different answers: {first}")
    return work


def log_round(key, number, rounds, row):
    cells = ", ".join(f"{name} {value / 1e9 if name == 'probe' else value:.2f}" for name, value in row.items())
    report.log(f"{key} round {number} of {rounds}{'' if number else ' (warms up, not counted)'}: {cells}")


def measure_prefill(engine, peers, rounds):
    """[round] of {engine: tokens/s}; other ids each round, the same for all engines."""
    out = []
    for i in range(rounds + 1):
        ids = random_ids(512, 1000 + i)
        rates = {"switchyard": engine.prefill_rate(ids)}
        rates.update({peer.name: peer.prefill_rate(ids) for peer in peers})
        log_round("prefill512", i, rounds, rates)
        out.append(rates)
    return out[1:]  # the first warms up


def measure_decode(engine, peers, work, probe, rates, rounds):
    """[round] of {engine: tokens/s, "probe": bytes/s, "bound": share of the bound that Switchyard reached, "bytes"}."""
    out, batch = [], len(work["prompts"])
    continuations = [tokens[:PEER_TOKENS] for tokens in work["tokens"]]
    for i in range(rounds + 1):
        before = probe()
        row = {"switchyard": engine.decode_rate(work["prompts"], DECODE_TOKENS)}
        row["probe"] = (before + probe()) / 2
        row.update({peer.name: peer.decode_rate(work["prompts"], continuations) for peer in peers})
        bounds = [roofline.bound_seconds(ops, row["probe"], rates) for ops in work["ops"]]
        seconds = batch / row["switchyard"]
        row["bound"], row["bytes"] = (statistics.median(values) / seconds for values in zip(*bounds))
        log_round(f"decode_b{batch}", i, rounds, row)
        out.append(row)
    return out[1:]


def summarize(key, rows, peers, figures, rates):
    """Medians of the rounds into figures[key] (ratio to the better peer) and rates[key]; returns the table's row."""
    rates[key] = {name: round(statistics.median(row[name] for row in rows), 1) for name in
                  ["switchyard"] + [peer.name for peer in peers]}
    figures[key] = None
    if peers:
        best = max((peer.name for peer in peers), key=lambda name: rates[key][name])
        figures[key] = statistics.median(row["switchyard"] / row[best] for row in rows)
    cells = [key, rates[key]["switchyard"]] + [rates[key].get(kind.name, "not run") for kind in
                                               (peer_engines.HfPeer, peer_engines.LlamaPeer)]
    cells.append(figures[key] if peers else "-")
    if "bound" not in rows[0]:
        return cells + ["-", "-", "-"]
    figures[key + "_bound"] = statistics.median(row["bound"] for row in rows)
    rates[key]["GB/s"] = round(statistics.median(row["probe"] for row in rows) / 1e9, 1)
    return cells + [figures[key + "_bound"], statistics.median(row["bytes"] for row in rows), rates[key]["GB/s"]]


def measure_bf16(args):
    """(figures, details)"""
    decode_rounds, prefill_rounds = (3, 2) if args.quick else (20, 8)
    checkpoint = shape.ensure_hf(args.cache, report.log)
    with Switchyard(args.bin, checkpoint, f"{args.cache}/peers-server.log", workers=1, threads=THREADS) as engine:
        peers, versions = peer_engines.open_peers(args.cache, checkpoint, THREADS, report.log)
        hf = next((peer for peer in peers if isinstance(peer, peer_engines.HfPeer)), None)
        work = prepare(engine, hf)
        onednn = roofline.onednn_rates({op for item in work.values() for ops in item["ops"] for op in ops})
        probe = roofline.Probe(THREADS)
        results = {"prefill512": measure_prefill(engine, peers, prefill_rounds)}
        for key in BATCHES:
            results[key] = measure_decode(engine, peers, work[key], probe, onednn, decode_rounds)
        for peer in peers:
            peer.close()
    figures, rates = {}, {}
    rows = [["tokens/s", "Switchyard", "HF", "llama.cpp", "ratio", "of bound", "of bytes", "probe GB/s"]]
    rows += [summarize(key, results[key], peers, figures, rates) for key in results]
    report.table(rows)
    if any(value > 1 for key, value in figures.items() if value is not None and key.endswith("_bound")):
        print("a share above 1: our kernels were faster than the probe of bandwidth or than oneDNN at that shape, or "
              "something else used the machine while those were measured")
    return figures, {
        "rates": rates, "peers": versions, "rounds": {"prefill": prefill_rounds, "decode": decode_rounds},
        "experts_touched": {key: round(item["touched"], 1) for key, item in work.items()},
        "experts_from": "HF's routing of the same ids" if hf else "uniform routing, expected"}


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--cache", default=str(report.ROOT / "build/bench"), help="folder for the checkpoints, kept")
    parser.add_argument("--only", choices=["bf16", "few_bits"], help="a part of it")
    args = parser.parse_args()
    report.require("numpy", "torch", "safetensors")
    load, figures, details = [report.load_average()], {}, {}
    if args.only != "few_bits":
        figures, details = measure_bf16(args)
    if args.only != "bf16":
        more, details["few_bits"] = few_bits.run(args, THREADS, 2 if args.quick else 10, random_ids)
        figures.update(more or {})
    load.append(report.load_average())
    for key, target in {**TARGETS, **few_bits.TARGETS}.items():
        if figures.get(key) is not None and figures[key] < target:
            print(f"missed: {key} {figures[key]:.3f} < {target}")
    report.finish("peers", figures, {**details, "load": load})


if __name__ == "__main__":
    main()
