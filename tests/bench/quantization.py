#!/usr/bin/env python3
"""What weights of few bits cost and give: bits per byte of text, and speed, of each --quantization beside none.

  quantization.py [--model=DIR [--dummy]] [--text=FILE.jsonl] [--documents=200] [--rounds=5] [--threads=2]

Bits per byte: by the log probabilities of the documents' own tokens, as a client of HTTP gets them (echo), over the bytes of
the text; documents are lines {"text": …} or {"messages": […]}, of which the text is what a chat template makes.  Without
--text: texts that the demo model's grammar writes from a seed of their own.  Speed: prefill of 512 tokens and decode at
batch 1 and 16; formats take turns, and a figure is the median over rounds of the ratio to none.
"""
import json
import math
import random
import statistics
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import report
from switchyard_engine import Switchyard

FORMATS = ("none", "int8", "int4")
TARGETS = {"int8_bits": 1.002, "int4_bits": 1.02}
CASES = {"prefill512": None, "decode_b1": 1, "decode_b16": 16}


def texts_of_the_grammar(count):
    sys.path.insert(0, str(report.ROOT / "deploy/demo-model"))
    import generate_data
    from grammar import Grammar

    grammar, source = Grammar(), random.Random("bits per byte")
    domains = ["stories", "recipes", "code", "sums", "facts"]
    return [generate_data.plain(grammar, domains[i % len(domains)], source) for i in range(count)]


def read_texts(path, count):
    lines = Path(path).read_text(encoding="utf-8").splitlines()[:count]
    return [document.get("text") or "\n".join(m["content"] for m in document["messages"]) for document in map(json.loads, lines)]


def bits_per_byte(engine, texts):
    """Of all texts but their first tokens, which nothing predicts."""
    bits = size = 0
    for text in texts:
        body = {"prompt": text, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
        request = urllib.request.Request(f"{engine.http}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            choice = json.load(answer)["choices"][0]["logprobs"]
        scored = choice["token_logprobs"][1:-1]  # the last is the one new token's
        bits -= sum(scored) / math.log(2)
        size += len(text.encode()) - len(choice["tokens"][0].encode())
    return bits / size


def random_ids(count, seed, most):
    source = random.Random(seed)
    return [source.randrange(300, most) for _ in range(count)]


def measure(engine, case, number, most):
    batch = CASES[case]
    if batch is None:
        return engine.prefill_rate(random_ids(512, 1000 + number, most))
    return engine.decode_rate([random_ids(64, 7000 + 100 * number + i, most) for i in range(batch)], 32)


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--model", default=str(report.ROOT / "deploy/demo-model"))
    parser.add_argument("--text", help="JSON lines")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dummy", action="store_true", help="random weights for the model's config.json: speed alone")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    texts = [] if args.dummy else read_texts(args.text, args.documents) if args.text else texts_of_the_grammar(args.documents)
    vocabulary = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    figures, rates, bits = {}, {}, {}
    with tempfile.TemporaryDirectory(prefix="sy-bench-") as folder, ExitStack() as stack:
        engines = {name: stack.enter_context(Switchyard(args.bin, args.model, Path(folder) / f"{name}.log", threads=args.threads,
                                                        flags=[f"--quantization={name}", "--http_port=0", *(["--load_format=dummy"] if args.dummy else [])])) for name in FORMATS}
        for name, engine in engines.items():
            if texts:
                bits[name] = bits_per_byte(engine, texts)
        for case in CASES:
            rows = [{name: measure(engine, case, i, vocabulary) for name, engine in engines.items()} for i in range(rounds + 1)][1:]
            for name in FORMATS:
                rates[f"{name}_{case}"] = round(statistics.median(row[name] for row in rows), 1)
                if name != "none":
                    figures[f"{name}_{case}"] = statistics.median(row[name] / row["none"] for row in rows)
    for name in FORMATS[1:]:
        if texts:
            figures[f"{name}_bits"] = bits[name] / bits["none"]
    head = ["", "bits per byte"] + [f"{case}, tokens/s" for case in CASES] + ["ratios to none"]
    report.table([head] + [[name, f"{bits[name]:.4f}" if texts else None] + [rates[f"{name}_{case}"] for case in CASES] +
                           [" ".join(f"{figures[f'{name}_{case}']:.2f}" for case in CASES) if name != "none" else None] for name in FORMATS])
    report.finish("quantization", figures, {"rates": rates, "bits_per_byte": {k: round(v, 5) for k, v in bits.items()},
                                            "targets": TARGETS, "documents": len(texts), "load": report.load_average()})


if __name__ == "__main__":
    main()
