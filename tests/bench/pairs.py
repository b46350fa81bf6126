#!/usr/bin/env python3
"""Two builds of Switchyard beside each other, in turns: what a change made faster or slower, and that answers stayed the same.

  pairs.py --before=BUILD_DIR [--after=BUILD_DIR]     (folders such as build/release, of any two commits)

Serving of the OLMoE-shaped model of `peers` as a gRPC client sees it (prefill of 512 tokens, decode at batch 1 and 16 on one worker of two
threads; prefill and batch 16 on two workers of one thread, with each build's own default for --placement), and, where both folders have
train_step_bench, training steps of the demo model.
A figure is the median over the rounds of after ÷ before within a round; above 1 is faster.  The first to go changes from round to round.
Checked: both builds give the same greedy tokens, and the same losses to the bit.

Needs the Python packages torch and safetensors, once, to make the checkpoint.
"""
import contextlib
import statistics
import struct
import sys
import tempfile
from pathlib import Path

import olmoe_checkpoint as shape
import report
from over_pytorch import Engine
from switchyard_engine import Switchyard
from workers import BATCH, DECODE_TOKENS, PROMPT, random_ids

TRAIN_SEQUENCES, TRAIN_LENGTH, TRAIN_STEPS = 4, 256, 4


def in_turns(builds, rounds, rate):
    """[round] of (before, after)."""
    out = []
    for i in range(rounds + 1):
        rates = {}
        for name in sorted(builds, reverse=i % 2 == 0):
            rates[name] = rate(builds[name], i)
        out.append((rates["before"], rates["after"]))
    return out[1:]  # the first warms up


def serving(bins, args, checkpoint, workers, results):
    prompts = [random_ids(PROMPT, seed) for seed in range(BATCH)]
    decode_rounds, prefill_rounds = (2, 2) if args.quick else (args.rounds, args.rounds)
    with contextlib.ExitStack() as stack:
        engines = {name: stack.enter_context(Switchyard(folder, checkpoint, f"{args.cache}/{name}-{workers}.log", workers, 2 // workers))
                   for name, folder in bins.items()}
        answers = {name: [answer["token_ids"] for answer in engine.generate(prompts, DECODE_TOKENS)] for name, engine in engines.items()}
        if answers["before"] != answers["after"]:
            sys.exit(f"pairs.py: the builds give different greedy tokens on {workers} workers")
        report.log(f"{workers} workers: the same {BATCH * DECODE_TOKENS} greedy tokens")
        results[f"prefill512_{workers}w"] = in_turns(engines, prefill_rounds,
                                                     lambda engine, i: engine.prefill_rate(random_ids(512, 4000 + i)))
        for batch in (1, BATCH) if workers == 1 else (BATCH,):
            results[f"decode_b{batch}_{workers}w"] = in_turns(
                engines, decode_rounds, lambda engine, i, batch=batch: engine.decode_rate(prompts[:batch], DECODE_TOKENS))


def training(bins, args, results):
    programs = {name: Path(folder) / "train_step_bench" for name, folder in bins.items()}
    if not all(program.exists() for program in programs.values()):
        report.log("training not compared: not both builds have train_step_bench")
        return
    with tempfile.NamedTemporaryFile(suffix=".bin") as tokens:
        ids = random_ids(TRAIN_SEQUENCES * (TRAIN_LENGTH + 1) * 8, 11)
        tokens.write(struct.pack(f"<{len(ids)}i", *(i % 2000 for i in ids)))
        tokens.flush()
        losses = {name: [] for name in programs}

        def rate(engine, _):
            seconds, some = engine.steps(TRAIN_STEPS)
            losses[engine.name] += some
            return TRAIN_STEPS * TRAIN_SEQUENCES * TRAIN_LENGTH / seconds

        # Which process is there first changes its memory's pages, and with them a per cent: half of the rounds each way.
        results["train_step"] = []
        for order in (list(programs), list(reversed(programs))):
            engines = {name: Engine(name, [str(programs[name]), f"--model={report.ROOT / 'deploy/demo-model'}", f"--tokens={tokens.name}",
                                           "--dtype=bf16", "--threads=2", f"--sequences={TRAIN_SEQUENCES}", f"--length={TRAIN_LENGTH}"])
                       for name in order}
            for engine in engines.values():
                engine.wait_until_ready()
            results["train_step"] += in_turns(engines, 2 if args.quick else args.rounds, rate)
            for engine in engines.values():
                engine.close()
        if losses["before"] != losses["after"]:
            sys.exit(f"pairs.py: the builds give different losses: {losses}")
        report.log(f"training: the same {len(losses['after'])} losses")


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--before", required=True, help="build folder")
    parser.add_argument("--after", default=str(report.ROOT / "build/release"), help="build folder")
    parser.add_argument("--cache", default=str(report.ROOT / "build/bench"), help="folder for the checkpoint, kept")
    parser.add_argument("--rounds", type=int, default=16)
    args = parser.parse_args()
    bins = {"before": f"{args.before}/bin", "after": f"{args.after}/bin"}
    report.require("torch", "safetensors")
    checkpoint = shape.ensure_hf(args.cache, report.log)
    load, results = [report.load_average()], {}
    for workers in (1, 2):
        serving(bins, args, checkpoint, workers, results)
    training(bins, args, results)
    load.append(report.load_average())
    figures = {key: statistics.median(after / before for before, after in pairs) for key, pairs in results.items()}
    report.table([["tokens/s", "before", "after", "ratio", "worst", "best"]] +
                 [[key, *(statistics.median(side) for side in zip(*pairs)), figures[key],
                   *(f(after / before for before, after in pairs) for f in (min, max))] for key, pairs in results.items()])
    report.finish("pairs", figures, {"rounds": args.rounds, "load": load})


if __name__ == "__main__":
    main()
