#!/usr/bin/env python3
"""Training on workers that serve: how soon it makes way for a request, and what requests pay for it.

One server, two workers of one thread, the demo model.  A job trains its architecture on both workers; requests come as a Poisson
process (open loop), few enough that there is nothing to serve most of the time.  Rounds take turns: the job is paused, the job runs.
A yield is the time from a plan's arrival at a worker until the last of its training threads has stopped, as the workers count it.

Checks: no request fails; greedy answers beside the job are those without it; the job gets on while it may.
"""
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import report
from switchyard_engine import Switchyard

MODEL = report.ROOT / "deploy/demo-model"
YIELD = "switchyard_worker_train_yield_seconds"


def prepare(root):
    """Data and an architecture beneath the roots."""
    (root / "data").mkdir()
    folder = root / "checkpoints/demo"
    folder.mkdir(parents=True)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder / name)
    with open(root / "data/text.jsonl", "w") as out:
        for file in sorted((report.ROOT / "workers").rglob("*.cc")) + sorted((report.ROOT / "server").rglob("*.cc")):
            out.write(json.dumps({"text": file.read_text()}) + "\n")


def wait_for(server, job, done):
    deadline = time.monotonic() + 120
    while True:
        now = server.ask("train get", job)
        if done(now):
            return now
        if now["state"] in ("failed", "cancelled") or time.monotonic() > deadline:
            sys.exit(f"train_slices.py: the job is {now['state']}: {now}")
        time.sleep(0.05)


def step_of(job):
    return int(job.get("progress", {}).get("step", 0))


def bucket_of(labels):
    return float(labels.split('le="')[1].split('"')[0].replace("+Inf", "inf"))


def yields(server):
    """{upper bound: count}, cumulative."""
    return {bucket_of(labels): count for labels, count in server.worker_series(YIELD + "_bucket").items()}


def percentile(buckets, share):
    """The bucket's upper bound."""
    total = buckets[float("inf")]
    return next(bound for bound, count in sorted(buckets.items()) if count >= share * total) if total else 0.0


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20, help="of a round")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second")
    parser.add_argument("--yield_ms", type=int, default=50)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 1, 8
    root = Path(tempfile.mkdtemp(prefix="train_slices."))
    load = report.load_average()
    try:
        prepare(root)
        flags = [f"--dataset_root={root / 'data'}", f"--checkpoint_root={root / 'checkpoints'}", "--train_on_serving",
                 f"--train_yield_ms={args.yield_ms}"]
        with Switchyard(args.bin, MODEL, root / "server.log", workers=2, threads=1, flags=flags) as server:
            measure(server, args, load)
    finally:
        shutil.rmtree(root)


def measure(server, args, load):
    source = random.Random(1)
    prompts = [[source.randrange(3, 6000) for _ in range(64)] for _ in range(4)]
    alone = [answer["token_ids"] for answer in server.generate(prompts, 24)]
    job = server.ask("train submit", "--architecture=demo", "--dataset=text.jsonl", "--steps=1000000", "--sequence_length=256",
                     "--batch_sequences=8", "--workers=2", "--on_serving_workers", "--learning_rate=1e-3")["job"]["id"]
    wait_for(server, job, lambda now: step_of(now) >= 1)
    rounds = {"without": [], "with": []}
    steps, before = 0, yields(server)
    for number in range(args.rounds):
        for kind in rounds:
            if kind == "without":
                server.ask("train pause", job)
                wait_for(server, job, lambda now: now["state"] == "paused")
            else:
                server.ask("train resume", job)
                begun = step_of(wait_for(server, job, lambda now: now["state"] == "running"))
            done = server.ask("bench", f"--rate={args.rate}", f"--duration={args.seconds}", "--prompt_tokens=64",
                              "--max_tokens=24", f"--seed={number}")
            if done["errors"]:
                sys.exit(f"train_slices.py: requests failed: {done['errors']}")
            rounds[kind].append(done)
            if kind == "with":
                steps += step_of(server.ask("train get", job)) - begun
        report.log(f"round {number + 1}/{args.rounds}: first token p50, p99 " + ", ".join(
            f"{kind} {done[-1]['ttft_seconds']['p50'] * 1e3:.1f}, {done[-1]['ttft_seconds']['p99'] * 1e3:.1f} ms"
            for kind, done in rounds.items()))
    if [answer["token_ids"] for answer in server.generate(prompts, 24)] != alone:
        sys.exit("train_slices.py: answers beside the job differ from those without it")
    if steps == 0:
        sys.exit("train_slices.py: the job did not get on")
    seen = {bound: count - before.get(bound, 0) for bound, count in yields(server).items()}
    late = sum(server.worker_series("switchyard_worker_train_late_yields_total").values())
    print_report(rounds, seen, late, steps, args, load)


def print_report(rounds, seen, late, steps, args, load):
    def mean(kind, what, figure):
        return sum(done[what][figure] for done in rounds[kind]) / len(rounds[kind]) * 1e3

    rows = [["milliseconds, mean of rounds", "without p50", "p99", "with p50", "p99"]]
    for what, name in (("ttft_seconds", "first token"), ("inter_token_seconds", "between tokens")):
        rows.append([name] + [mean(kind, what, figure) for kind in rounds for figure in ("p50", "p99")])
    report.table(rows)
    p50, p99 = (percentile(seen, share) * 1e3 for share in (0.5, 0.99))
    print(f"{seen[float('inf')]:.0f} yields: p50 at most {p50:.1f} ms, p99 at most {p99:.1f} ms, {late:.0f} above "
          f"{args.yield_ms} ms; {steps} steps of training in {args.rounds * args.seconds:.0f} s")
    report.finish("train_slices", {"yield_p50_ms": p50, "yield_p99_ms": p99, "late_yields": int(late), "steps": steps,
                                   "ttft_p50_ratio": mean("with", "ttft_seconds", "p50") / mean("without", "ttft_seconds", "p50"),
                                   "ttft_p99_ratio": mean("with", "ttft_seconds", "p99") / mean("without", "ttft_seconds", "p99")},
                  {"rate": args.rate, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
