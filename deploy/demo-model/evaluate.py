#!/usr/bin/env python3
"""Measures the exported model on the held-out files and prints the tables of README.md.

    python3 evaluate.py --model . --data /tmp/demo/data [--log LOG... --svg loss.svg]

Bits per byte: every held-out file by itself, from <|endoftext|>, in windows of the model's whole context that move by
half of it, so that all but a file's beginning is predicted from at least half a context; the file's end token is paid
for too.  `xz -9` gets the files of a domain in one stream.  The arithmetic is bf16, the last product and softmax fp32.
Expert use: choices of every scored token.  Mutual information of domain and expert: over the same choices, beside the
mean of 20 controls in which the windows keep their experts but swap their domains.
"""

import argparse
import csv
import json
import math
import pathlib
import subprocess
import sys

import cpu_environment  # noqa: F401  (before torch)
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from export import load_exported

DOMAINS = ["prose", "code", "documentation"]
PROMPTS = {
    "prose": "It was a dark and stormy night, and the captain of the ship",
    "code": "def read_lines(path):\n    \"\"\"Return the lines of a text file.\"\"\"\n",
    "documentation": "NAME\n       copy_file - copy the contents of a file\n\nSYNOPSIS\n",
}


def windows(ids: list[int], context: int):
    """Yields (inputs, targets, first scored position): every token but the first is scored once."""
    step = context // 2
    begin, scored = 0, 0
    while scored < len(ids) - 1:
        end = min(begin + context, len(ids) - 1)
        yield ids[begin:end], ids[begin + 1:end + 1], scored - begin
        scored = end
        begin = max(0, end - step)


@torch.no_grad()
def score(model, files, tokenizer):
    """Returns bits and bytes by domain, and per window its domain and experts' counts [windows, L, E]."""
    c = model.config
    bits, size, tokens = (dict.fromkeys(DOMAINS, 0.0) for _ in range(3))
    labels, counts = [], []
    for number, file in enumerate(files):
        ids = [0] + tokenizer.encode(file["text"], add_special_tokens=False).ids + [0]
        for inputs, targets, first in windows(ids, c.max_position_embeddings):
            h, _, chosen = model.hidden(torch.tensor([inputs]))
            logits = h[first:].float() @ model.embedding.t()
            loss = F.cross_entropy(logits, torch.tensor(targets[first:]), reduction="sum").item()
            bits[file["domain"]] += loss / math.log(2)
            tokens[file["domain"]] += len(targets) - first
            labels.append(DOMAINS.index(file["domain"]))
            counts.append(torch.stack([torch.bincount(layer[first:].flatten(), minlength=c.num_experts)
                                       for layer in chosen]))
        size[file["domain"]] += len(file["text"].encode())
        print(f"scored {number + 1} of {len(files)} files", file=sys.stderr, flush=True)
    return bits, size, tokens, torch.tensor(labels), torch.stack(counts).double()


def xz_bits(texts: list[str]) -> float:
    packed = subprocess.run(["xz", "-9", "-c"], input="".join(texts).encode(), capture_output=True, check=True).stdout
    return 8.0 * len(packed)


def mutual_information(labels, counts):
    """Bits between domain and expert; labels [W], counts [W, E]."""
    joint = torch.zeros(len(DOMAINS), counts.shape[1], dtype=torch.float64).index_add_(0, labels, counts)
    joint /= joint.sum()
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    seen = joint > 0
    return (joint[seen] * (joint[seen] / independent[seen]).log2()).sum().item()


def print_bits(files, bits, size, tokens) -> None:
    print("\n| domain | held-out bytes | tokens | bits/byte | xz -9 bits/byte |\n|---|---:|---:|---:|---:|")
    for domain in DOMAINS:
        packed = xz_bits([f["text"] for f in files if f["domain"] == domain])
        print(f"| {domain} | {size[domain]:,.0f} | {tokens[domain]:,.0f} | {bits[domain] / size[domain]:.3f} | "
              f"{packed / size[domain]:.3f} |")
    total = sum(size.values())
    print(f"| all | {total:,.0f} | {sum(tokens.values()):,.0f} | {sum(bits.values()) / total:.3f} | "
          f"{xz_bits([f['text'] for f in files]) / total:.3f} |")


def print_experts(labels, counts) -> None:
    print("\n| layer | busiest / mean | idlest / mean | I(domain; expert), bits | shuffled control |\n"
          "|---|---:|---:|---:|---:|")
    generator = torch.Generator().manual_seed(0)
    for layer in range(counts.shape[1]):
        use = counts[:, layer].sum(0)
        controls = [mutual_information(labels[torch.randperm(len(labels), generator=generator)], counts[:, layer])
                    for _ in range(20)]
        print(f"| {layer} | {use.max() / use.mean():.2f} | {use.min() / use.mean():.2f} | "
              f"{mutual_information(labels, counts[:, layer]):.4f} | {sum(controls) / len(controls):.4f} |")


@torch.no_grad()
def sample(model, tokenizer, prompt: str, length: int, seed: int) -> str:
    """Temperature 0.8, top-p 0.95: the defaults of generation_config.json."""
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    for _ in range(length):
        h, _, _ = model.hidden(torch.tensor([ids]))
        probs, order = ((h[-1].float() @ model.embedding.t()) / 0.8).softmax(-1).sort(descending=True)
        probs[probs.cumsum(-1) - probs > 0.95] = 0
        token = order[torch.multinomial(probs, 1, generator=generator)].item()
        if token in (0, 2):
            break
        ids.append(token)
    return tokenizer.decode(ids, skip_special_tokens=False)


def read_steps(paths: list[pathlib.Path]) -> list[dict]:
    """Seconds and tokens so far, loss and balance loss (means of 20 steps): of train.py's log, or of the steps.csv of
    training jobs, each of which goes on from the one before."""
    if paths[0].suffix != ".csv":
        return [json.loads(line) for line in paths[0].read_text().splitlines()]
    steps, so_far = [], {"seconds": 0.0, "tokens": 0}
    for path in paths:
        with open(path, newline="", encoding="utf-8") as log:
            rows = [{key: float(row[key]) for key in ("loss", "balance_loss", "seconds", "tokens")}
                    for row in csv.DictReader(log)]
        before = so_far["tokens"]
        for end in range(20, len(rows) + 1, 20):
            part = rows[end - 20:end]
            so_far = {"seconds": so_far["seconds"] + sum(row["seconds"] for row in part),
                      "tokens": before + part[-1]["tokens"]}
            steps.append({**so_far, "loss": sum(row["loss"] for row in part) / 20,
                          "balance": sum(row["balance_loss"] for row in part) / 20})
    return steps


def print_curve(lines: list[dict], svg: pathlib.Path | None) -> None:
    """The loss (nats per token, mean of 20 steps) at twelve moments, and all of it as a picture."""
    print("\n| minutes | tokens, M | loss | balance loss |\n|---:|---:|---:|---:|")
    for i in range(1, 13):
        line = min(lines, key=lambda entry: abs(entry["seconds"] - i / 12 * lines[-1]["seconds"]))
        print(f"| {line['seconds'] / 60:.1f} | {line['tokens'] / 1e6:.2f} | {line['loss']:.3f} "
              f"| {line['balance']:.2f} |")
    print(f"\n{lines[-1]['tokens'] / lines[-1]['seconds']:.0f} tokens/s over the whole run")
    if svg:
        last = lines[-1]["tokens"]
        points = " ".join(f"{40 + 550 * e['tokens'] / last:.1f},{10 + 220 * (7 - min(e['loss'], 7)) / 5:.1f}"
                          for e in lines[::max(1, len(lines) // 150)])
        ticks = "".join(f'<text x="8" y="{14 + 220 * (7 - v) / 5:.0f}">{v}</text><line x1="40" x2="590" '
                        f'y1="{10 + 220 * (7 - v) / 5:.0f}" y2="{10 + 220 * (7 - v) / 5:.0f}" stroke="#ddd"/>'
                        for v in range(2, 8))
        svg.write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 260" font-family="sans-serif" font-size="12">'
            f'<rect width="600" height="260" fill="#fff"/>{ticks}<polyline points="{points}" fill="none" '
            'stroke="#06c" stroke-width="1.5"/><text x="200" y="252">training tokens (0 to '
            f'{last / 1e6:.1f} M); loss in nats per token</text></svg>\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="the exported directory")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="what prepare_data.py wrote")
    parser.add_argument("--log", type=pathlib.Path, nargs="+",
                        help="jobs' steps.csv in order, or train.py's log.jsonl: prints the loss curve")
    parser.add_argument("--svg", type=pathlib.Path, help="also draws it here")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples_only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load_exported(args.model), Tokenizer.from_file(str(args.model / "tokenizer.json"))
    files = [json.loads(line) for line in (args.data / "heldout.jsonl").read_text("utf-8").splitlines()]
    if not args.samples_only:
        bits, size, tokens, labels, counts = score(model, files, tokenizer)
        print_bits(files, bits, size, tokens)
        print_experts(labels, counts)
    chat = "<|im_start|>user\nWhat is a compiler?<|im_end|>\n<|im_start|>assistant\n"
    for name, prompt in {**PROMPTS, "chat": chat}.items():
        print(f"\n--- {name}\n{sample(model, tokenizer, prompt, 160, seed=1)}")
    if args.log:
        print_curve(read_steps(args.log), args.svg)


if __name__ == "__main__":
    main()
