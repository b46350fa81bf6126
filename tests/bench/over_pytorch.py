#!/usr/bin/env python3
"""Training on one worker beside PyTorch: tokens a second of whole steps (forward, backward, clipping, AdamW) of the same
model, weights, tokens, dtype, batch and threads.  Every engine is a process; they take turns, a few steps each.

Checks: the engines' losses of the same steps differ by at most 0.01 % (fp32) or 1 % (bf16, where rounding decides some
near-ties of the routers otherwise).
"""
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report

PEERS = ["eager", "grouped_mm", "compiled"]
TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}


class Engine:
    def __init__(self, name, command):
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _line(self):
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with status {self._process.wait()}")
        return line

    def wait_until_ready(self):
        assert self._line() == "ready\n"

    def steps(self, count):
        """Seconds and losses."""
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        answer = json.loads(self._line())
        return answer["seconds"], answer["losses"]

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def write_tokens(model, path, wanted):
    """Of this repository's own text, by the model's tokenizer."""
    from tokenizers import Tokenizer
    import numpy as np
    tokenizer, ids = Tokenizer.from_file(str(Path(model) / "tokenizer.json")), []
    for file in sorted((report.ROOT / "workers").rglob("*.cc")) + sorted((report.ROOT / "server").rglob("*.cc")):
        ids += tokenizer.encode(file.read_text()).ids
        if len(ids) >= wanted:
            break
    np.array(ids[:wanted], dtype="<i4").tofile(path)


def check(losses, dtype):
    ours = losses.pop("switchyard")
    for name, theirs in losses.items():
        if not all(map(math.isfinite, ours + theirs)):
            sys.exit(f"over_pytorch.py: a loss beside {name} is not finite: {ours}, {theirs}")
        worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
        report.log(f"losses beside {name}: at most {worst:.2e} apart, over {len(ours)} steps from {ours[0]:.4f} to {ours[-1]:.4f}")
        if worst > TOLERANCE[dtype]:
            sys.exit(f"over_pytorch.py: {name}'s losses are {worst:.2e} away, limit {TOLERANCE[dtype]}")


def measure(engines, args):
    """Tokens a second of every engine by round, after one step that compiles and warms."""
    rates, losses = {e.name: [] for e in engines}, {e.name: [] for e in engines}
    for engine in engines:
        engine.wait_until_ready()
        seconds, first = engine.steps(2)
        losses[engine.name] += first
        report.log(f"{engine.name}: first two steps in {seconds:.1f} s")
    for i in range(args.rounds):
        for engine in engines:
            seconds, more = engine.steps(args.steps)
            losses[engine.name] += more
            rates[engine.name].append(args.steps * args.sequences * args.length / seconds)
        report.log(f"round {i + 1}/{args.rounds}: " + ", ".join(f"{e.name} {rates[e.name][-1]:.0f}" for e in engines))
    check(losses, args.dtype)
    return rates


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--model", default=str(report.ROOT / "deploy/demo-model"))
    parser.add_argument("--dtype", choices=list(TOLERANCE), default="bf16")
    parser.add_argument("--with_script", action="store_true", help="also the demo model's own training code (bf16)")
    for name, default in (("threads", 2), ("sequences", 8), ("length", 512), ("steps", 2), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    report.require("torch", "transformers", "tokenizers", "safetensors", "numpy")
    if args.quick:
        args.steps, args.rounds = 1, 1
    load = report.load_average()
    peers = PEERS + (["script"] if args.with_script else [])
    with tempfile.TemporaryDirectory() as folder:
        tokens = str(Path(folder) / "tokens")
        write_tokens(args.model, tokens, 64 * args.sequences * (args.length + 1))
        flags = [f"--model={args.model}", f"--tokens={tokens}"]
        flags += [f"--{name}={getattr(args, name)}" for name in ("dtype", "threads", "sequences", "length")]
        torch_trainer = [sys.executable, "-B", str(Path(__file__).with_name("torch_trainer.py"))]
        engines = [Engine("switchyard", [str(Path(args.bin) / "train_step_bench")] + flags)]
        engines += [Engine(name, torch_trainer + [f"--how={name}"] + flags) for name in peers]
        try:
            rates = measure(engines, args)
        finally:
            for engine in engines:
                engine.close()
    median = {name: statistics.median(column) for name, column in rates.items()}
    print(f"| {args.dtype}, {args.sequences} x {args.length} tokens, {args.threads} threads | tokens/s | switchyard / it |")
    print("|---|---|---|")
    ratios = {}
    for name in rates:
        ratios[name] = statistics.median(a / b for a, b in zip(rates["switchyard"], rates[name]))
        print(f"| {name} | {median[name]:.0f} | {ratios[name]:.2f} |")
    best = max(PEERS, key=lambda name: median[name])
    beside_script = {"over_script": round(ratios["script"], 3)} if "script" in ratios else {}
    print(json.dumps({"bench": "over_pytorch", **report.machine(), "dtype": args.dtype, "load": [load, report.load_average()],
                      "tokens_per_s": {name: round(value) for name, value in median.items()}, "best": best,
                      "over_pytorch": round(ratios[best], 3), **beside_script}))


if __name__ == "__main__":
    main()
