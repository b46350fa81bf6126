#!/usr/bin/env python3
"""Training beside PyTorch: tokens a second of whole steps (forward, backward, clipping, AdamW) of the same model, weights,
tokens, dtype, batch and threads.  Every engine is a process, or two; they take turns, a few steps each.

Parts, each with a ratio to the fastest peer:
  one     one worker, the demo model (--model: another), beside transformers eager, with grouped_mm and compiled, and in bf16
          beside the script that was written for this one model (over_pytorch; over_script: to that script alone)
  168m    a model of 168 M parameters, random weights (over_168m)
  ddp     two workers of one thread beside two processes of DistributedDataParallel (over_ddp)

Threads wait alike: first all sleep as soon as they have nothing to do (PyTorch's by OMP_WAIT_POLICY=passive), then all spin
for a while before (ours 50 us, PyTorch's as its libgomp does by itself); a ratio is the lesser of both.  Engines that have no
turn are stopped.

Checks: our losses of the same steps differ from each engine's by at most 0.01 % in fp32; in ddp by 0.1 %, as each process of
PyTorch balances its own rows' experts.  In bf16, where rounding decides some near-ties of the routers otherwise, ours differ from
eager's by at most 1 %; the others' differ from eager's by at most 3 %.
"""
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report

WAITS = ["sleep", "spin"]
PEERS = ["eager", "grouped_mm", "compiled"]
TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}
DDP_TOLERANCE = {"fp32": 1e-3, "bf16": 1e-2}
PEERS_TOLERANCE = 3e-2  # of peers' losses beside eager's: farther ones train something else
TARGETS = {"over_pytorch": 1.5, "over_script": 1.5, "over_ddp": 1.5, "over_168m": 1.5}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
         "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 768}


class Engine:
    """Of one process, or of several that do each step together."""

    def __init__(self, name, *commands, environment=None):
        self.name = name
        self._processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            env={**os.environ, **(environment or {})}) for command in commands]

    def _signal(self, number):
        for process in self._processes:
            process.send_signal(number)

    def _lines(self):
        lines = [process.stdout.readline() for process in self._processes]
        for line, process in zip(lines, self._processes):
            if not line:
                sys.exit(f"{self.name} ended with status {process.wait()}")
        return lines

    def wait_until_ready(self):
        assert set(self._lines()) == {"ready\n"}
        self._signal(signal.SIGSTOP)

    def steps(self, count):
        """Seconds of the slowest process, and losses of all rows."""
        self._signal(signal.SIGCONT)
        for process in self._processes:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        answers = [json.loads(line) for line in self._lines()]
        self._signal(signal.SIGSTOP)
        return max(answer["seconds"] for answer in answers), answers[0]["losses"]

    def close(self):
        self._signal(signal.SIGCONT)
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:  # it waits for one that has died
                process.kill()
                process.wait()


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


def ensure_large(cache):
    """The folder of the model of part 168m, made once: the demo model's tokenizer, weights drawn by transformers."""
    final = Path(cache) / f"demo-168m-{'-'.join(str(value) for value in LARGE.values())}"
    if final.exists():
        return str(final)
    import shutil
    import torch
    import transformers
    demo = report.ROOT / "deploy/demo-model"
    config = transformers.AutoConfig.from_pretrained(demo, **LARGE)
    Path(cache).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=cache))
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    report.log(f"{final}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, folder / name)
    folder.rename(final)
    return str(final)


def distance(a, b):
    return max(abs(of_a - of_b) / of_b for of_a, of_b in zip(a, b))


def check(losses, tolerance, dtype):
    ours, too_far = losses.pop("switchyard"), []
    for name, theirs in losses.items():
        if not all(map(math.isfinite, ours + theirs)):
            sys.exit(f"over_pytorch.py: a loss beside {name} is not finite: {ours}, {theirs}")
        worst, of_peer = distance(ours, theirs), distance(theirs, losses["eager"])
        report.log(f"losses beside {name}: at most {worst:.2e} apart ({of_peer:.2e} from eager's), over {len(ours)} steps "
                   f"from {ours[0]:.4f} to {ours[-1]:.4f}")
        if (dtype == "fp32" or name == "eager") and worst > tolerance:
            too_far.append(f"ours are {worst:.2e} from {name}'s, limit {tolerance}")
        if of_peer > PEERS_TOLERANCE:
            too_far.append(f"{name}'s are {of_peer:.2e} from eager's, limit {PEERS_TOLERANCE}")
    if too_far:
        sys.exit(f"over_pytorch.py: losses: {'; '.join(too_far)}")


def measure(engines, args, sequences, tolerance):
    """Tokens a second of every engine by round, after two steps that compile and warm."""
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
            rates[engine.name].append(args.steps * sequences * args.length / seconds)
        report.log(f"round {i + 1}/{args.rounds}: " + ", ".join(f"{e.name} {rates[e.name][-1]:.0f}" for e in engines))
    check(losses, tolerance, args.dtype)
    return rates


def run(args, wait, model, peers, sequences, world=1):
    """Tokens a second by engine and round."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = str(Path(folder) / "tokens")
        write_tokens(model, tokens, 64 * sequences * (args.length + 1))
        threads = args.threads if world == 1 else 1
        flags = [f"--model={model}", f"--tokens={tokens}", f"--dtype={args.dtype}", f"--threads={threads}",
                 f"--sequences={sequences}", f"--length={args.length}"]
        ranks = [[f"--store={folder}", f"--rank={rank}", f"--world={world}"] if world > 1 else [] for rank in range(world)]
        ours = [str(Path(args.bin) / "train_step_bench"), f"--wait={wait}", *flags]
        theirs = [sys.executable, "-B", str(Path(__file__).with_name("torch_trainer.py")), *flags]
        environment = {"SY_OMP_WAIT": wait}
        engines = [Engine("switchyard", *(ours + rank for rank in ranks))]
        engines += [Engine(name, *(theirs + [f"--how={name}"] + rank for rank in ranks), environment=environment) for name in peers]
        try:
            return measure(engines, args, sequences, (TOLERANCE if world == 1 else DDP_TOLERANCE)[args.dtype])
        finally:
            for engine in engines:
                engine.close()


def print_part(args, wait, part, sequences, rates):
    """Ratios to each peer, medians of rounds, and tokens a second."""
    median = {name: statistics.median(column) for name, column in rates.items()}
    threads = "2 x 1 thread" if part == "ddp" else f"{args.threads} threads"
    print(f"| {part}: {args.dtype}, {sequences} x {args.length} tokens, {threads} that {wait}, {args.rounds} rounds | tokens/s | switchyard / it |")
    print("|---|---|---|")
    ratios = {}
    for name in rates:
        ratios[name] = statistics.median(a / b for a, b in zip(rates["switchyard"], rates[name]))
        print(f"| {name} | {median[name]:.0f} | {ratios[name]:.2f} |", flush=True)
    return {name: ratio for name, ratio in ratios.items() if name != "switchyard"}, median


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=["one", "168m", "ddp"], default=["one", "168m", "ddp"], help="parts")
    parser.add_argument("--model", default=str(report.ROOT / "deploy/demo-model"), help="of parts one and ddp")
    parser.add_argument("--cache", default=str(report.ROOT / "build/bench"), help="folder for the model of part 168m, kept")
    parser.add_argument("--dtype", choices=list(TOLERANCE), default="bf16")
    parser.add_argument("--wait", nargs="+", choices=WAITS, default=WAITS, help="what threads do that have nothing to do")
    for name, default in (("threads", 2), ("sequences", 8), ("length", 512), ("steps", 2), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    report.require("torch", "transformers", "tokenizers", "safetensors", "numpy")
    if args.quick:
        args.steps, args.rounds = 1, 1
    figures, medians, load = {}, {}, report.load_average()
    for part in args.only:
        of_demo = Path(args.model).name == "demo-model"
        script = ["script"] if part == "one" and args.dtype == "bf16" and of_demo else []
        sequences = max(2, args.sequences // 2) if part == "168m" else args.sequences
        model = ensure_large(args.cache) if part == "168m" else args.model
        for wait in args.wait:
            rates = run(args, wait, model, PEERS + script, sequences, world=2 if part == "ddp" else 1)
            ratios, median = print_part(args, wait, part, sequences, rates)
            medians[f"{part}, {wait}"] = {name: round(value) for name, value in median.items()}
            key = "over_pytorch" if part == "one" else f"over_{part}"
            figures[key] = min(figures.get(key, math.inf), *ratios.values())
            if script:
                figures["over_script"] = min(figures.get("over_script", math.inf), ratios["script"])
    print(json.dumps({"bench": "over_pytorch", **report.machine(), "dtype": args.dtype, "load": [load, report.load_average()],
                      "targets": TARGETS, "tokens_per_s": medians, **{key: round(value, 3) for key, value in figures.items()}}))


if __name__ == "__main__":
    main()
