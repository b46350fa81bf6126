#!/usr/bin/env python3
"""What adapters that requests choose cost: decode of a batch for the model as it is, for one adapter and for eight, beside a server without.

  adapters.py [--model=DIR] [--rank=16] [--batch=8] [--context=64] [--rounds=7] [--threads=2] [--flag=FLAG …]

Adapters are drawn, of all four projections of attention.  "none" is a server without --adapters; the others are one server with eight: no
request asks for one ("0"), all for the same ("1"), or each for its own in turns ("8").  Ways take turns; a figure is the median over rounds of
the ratio to "none".

Checks: tokens and log probabilities of "0" are those of "none", those of "1" and "8" are others, and the first request, which has the same
adapter in both, gets the same from both.
"""
import array
import json
import random
import statistics
import struct
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import quantization
import report
from switchyard_engine import Switchyard

ADAPTERS = 8
DECODE_TOKENS = 48
WAYS = ("none", "0", "1", "8")


def write_adapter(folder, config, rank, seed):
    """A folder as PEFT saves it."""
    source = random.Random(seed)
    numbers = array.array("f", (source.gauss(0, 0.02) for _ in range(1 << 16))).tobytes()
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head = config.get("head_dim") or hidden // heads
    wide, narrow = heads * head, config.get("num_key_value_heads", heads) * head
    tensors, offset = {}, 0
    for layer in range(config["num_hidden_layers"]):
        for name, n, k in (("q_proj", wide, hidden), ("k_proj", narrow, hidden), ("v_proj", narrow, hidden), ("o_proj", hidden, wide)):
            for half, shape in (("A", [rank, k]), ("B", [n, rank])):
                size = 4 * shape[0] * shape[1]
                tensors[f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{half}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
                offset += size
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    with open(folder / "adapter_model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for begin in range(0, offset, len(numbers)):
            out.write(numbers[:offset - begin])


def check(ask):
    """ask(way): the answers of a batch."""
    seen = {way: [(answer["token_ids"], [token["logprob"] for token in answer["logprobs"]]) for answer in ask(way)] for way in WAYS}
    if seen["0"] != seen["none"]:
        sys.exit("adapters.py: beside adapters the model as it is answers otherwise")
    for way in ("1", "8"):
        if any(one == other for one, other in zip(seen[way], seen["none"], strict=True)):
            sys.exit(f"adapters.py: a request of \"{way}\" was answered without its adapter")
    if seen["1"][0] != seen["8"][0]:
        sys.exit("adapters.py: an adapter answers otherwise beside others")


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--model", default=str(report.ROOT / "deploy/demo-model"))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flag", action="append", default=[], help="of the server")
    args = parser.parse_args()
    rounds, load = 1 if args.quick else args.rounds, report.load_average()
    config = json.loads((Path(args.model) / "config.json").read_text())
    with tempfile.TemporaryDirectory(prefix="sy-bench-") as folder, ExitStack() as stack:
        for i in range(ADAPTERS):
            write_adapter(Path(folder) / f"a{i}", config, args.rank, 100 + i)
        flags = ["--http_port=-1", "--served_model_name=base", *args.flag]
        start = lambda name, more: stack.enter_context(Switchyard(args.bin, args.model, Path(folder) / f"{name}.log", threads=args.threads, flags=[*flags, *more]))
        plain = start("none", [])
        adapted = start("adapted", ["--adapters=" + ",".join(f"a{i}={folder}/a{i}" for i in range(ADAPTERS))])
        prompts = [quantization.random_ids(args.context, 7000 + i, config["vocab_size"]) for i in range(args.batch)]
        model_of = {"none": lambda i: "base", "0": lambda i: "base", "1": lambda i: "base:a0", "8": lambda i: f"base:a{i % ADAPTERS}"}
        engine_of = {way: plain if way == "none" else adapted for way in WAYS}
        requests_of = {way: [{"token_ids": prompt, "model": model_of[way](j), "ignore_eos": True} for j, prompt in enumerate(prompts)] for way in WAYS}
        check(lambda way: engine_of[way].generate(requests_of[way], DECODE_TOKENS))
        rows = []
        for i in range(rounds + 1):
            order = WAYS[i % len(WAYS):] + WAYS[:i % len(WAYS)]
            rows.append({way: engine_of[way].decode_rate(requests_of[way], DECODE_TOKENS) for way in order})
            report.log(f"round {i} of {rounds}{'' if i else ' (warms up, not counted)'}: " + ", ".join(f"{way} {rows[-1][way]:.1f}" for way in WAYS))
    rates = {way: statistics.median(row[way] for row in rows[1:]) for way in WAYS}
    figures = {f"decode_{way}": statistics.median(row[way] / row["none"] for row in rows[1:]) for way in WAYS[1:]}
    report.table([["adapters in the batch", f"{args.batch} sequences, tokens/s", "ratio to none"]] + [
        [way, round(rates[way], 1), figures.get(f"decode_{way}")] for way in WAYS])
    report.finish("adapters", figures, {"rates": {way: round(rate, 1) for way, rate in rates.items()}, "rank": args.rank, "batch": args.batch,
                                        "context": args.context, "rounds": rounds, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
