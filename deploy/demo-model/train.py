#!/usr/bin/env python3
"""Trains the demo model for a given number of minutes, whatever the machine's speed: learning rate and sequence
length follow the share of the time that has passed, so the run always anneals to its end.

    python3 prepare_data.py --packages /tmp/demo/packages --out /tmp/demo/data --tokenizer_dir .
    python3 train.py --data /tmp/demo/data --out /tmp/demo/run --minutes 75
    python3 export.py --run /tmp/demo/run --out .
    python3 evaluate.py --model . --data /tmp/demo/data

A run that was stopped continues from its last checkpoint when the same command is given again.
Writes OUT/checkpoint.pt (weights, optimiser, progress) and OUT/log.jsonl (one line every 20 steps).
"""

import argparse
import json
import math
import pathlib
import time

import cpu_environment  # noqa: F401  (before torch)
import numpy as np
import torch

from model import Config, Model, set_compile

SHARES = {"prose": 0.32, "code": 0.32, "documentation": 0.32, "chat": 0.04}
GOLDEN = (math.sqrt(5) - 1) / 2


class Batches:
    """Sequences from one token stream per domain.

    The i-th window of a domain starts at frac(i * golden ratio) of its stream: this covers the stream evenly at
    every moment, needs no state but i, and a continued run goes on where it was.
    """

    def __init__(self, directory: pathlib.Path, seed: int) -> None:
        self.streams = {name: np.load(directory / f"train_{name}.npy", mmap_mode="r") for name in SHARES}
        self.seed = seed
        self.drawn = dict.fromkeys(SHARES, 0)

    def next(self, step: int, batch: int, length: int):
        """Returns ids and targets, both [batch, length] int64."""
        rng = np.random.default_rng((self.seed, step))
        windows = []
        for name in rng.choice(list(SHARES), size=batch, p=list(SHARES.values())):
            stream = self.streams[name]
            start = int((self.drawn[name] * GOLDEN) % 1.0 * (len(stream) - length - 1))
            self.drawn[name] += 1
            windows.append(stream[start:start + length + 1].astype(np.int64))
        tokens = torch.from_numpy(np.stack(windows))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def learning_rate(peak: float, step: int, done: float) -> float:
    """Warm-up over 100 steps, then flat until 30 % of the time, then linear to 2 % of the peak."""
    decay = 1.0 if done < 0.3 else max(0.02, (1.0 - done) / 0.7)
    return peak * min(1.0, (step + 1) / 100) * decay


def make_optimizer(model: Model, weight_decay: float):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": weight_decay},
                              {"params": others, "weight_decay": 0.0}],
                             lr=0.0, betas=(0.9, 0.95), eps=1e-8, fused=True)


def save(path: pathlib.Path, model, optimizer, progress: dict, batches: Batches) -> None:
    """Replaces the checkpoint in one move: a run killed while writing keeps the old one."""
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": progress,
                "drawn": batches.drawn, "config": model.config.to_dict()}, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def train_step(model: Model, optimizer, batch, args, rate: float):
    """Returns the loss, the mean balance loss and, for the worst layer, busiest expert / mean."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss, balance, chosen = model.loss(*batch)
    (loss + args.balance_weight * balance.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    experts = model.config.num_experts
    worst = max(torch.bincount(c.flatten(), minlength=experts).max().item() * experts / c.numel() for c in chosen)
    return loss.item(), balance.mean().item(), worst


def run(args) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    set_compile(not args.no_compile)
    args.out.mkdir(parents=True, exist_ok=True)
    model, batches = Model(Config()), Batches(args.data, args.seed)
    optimizer = make_optimizer(model, args.weight_decay)
    progress = {"step": 0, "tokens": 0, "seconds": 0.0}
    checkpoint = args.out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        progress, batches.drawn = saved["progress"], saved["drawn"]
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, from {progress}", flush=True)

    budget, last_save, window = args.minutes * 60, time.monotonic(), []
    while progress["seconds"] < budget:
        begin = time.monotonic()
        done = progress["seconds"] / budget
        length = 512 if done < args.short_until else 1024
        batch = batches.next(progress["step"], args.batch_tokens // length, length)
        rate = learning_rate(args.lr, progress["step"], done)
        window.append(train_step(model, optimizer, batch, args, rate))
        progress["step"] += 1
        progress["tokens"] += args.batch_tokens
        progress["seconds"] += time.monotonic() - begin
        if progress["step"] % 20 == 0:
            loss, balance, worst = (sum(column) / len(window) for column in zip(*window))
            line = {**progress, "length": length, "lr": rate, "loss": loss, "balance": balance, "max_over_mean": worst,
                    "tokens_per_s": args.batch_tokens / (time.monotonic() - begin)}
            window.clear()
            print(json.dumps({k: round(v, 5) for k, v in line.items()}), flush=True)
            with open(args.out / "log.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps({k: round(v, 5) for k, v in line.items()}) + "\n")
        if time.monotonic() - last_save > 120:
            save(checkpoint, model, optimizer, progress, batches)
            last_save = time.monotonic()
    save(checkpoint, model, optimizer, progress, batches)
    print(f"done: {progress}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="what prepare_data.py wrote")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, default=75, help="training time; the schedule follows it")
    parser.add_argument("--batch_tokens", type=int, default=4096)
    parser.add_argument("--short_until", type=float, default=0.75,
                        help="share of the time with sequences of 512 tokens; 1024 after it")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight_decay", type=float, default=0.1)
    parser.add_argument("--balance_weight", type=float, default=0.01, help="of each layer's own balance loss")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no_compile", action="store_true", help="run without torch.compile (no C++ compiler)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
