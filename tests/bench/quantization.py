#!/usr/bin/env python3
"""What weights of few bits cost and give: bits per byte of text, and speed, of each --quantization beside none.

  quantization.py [--model=DIR [--dummy]] [--text=FILE.jsonl] [--dataset=FILE.bin] [--documents=200] [--rounds=5] [--threads=2] [--bits_only]

Bits per byte: by the log probabilities of the documents' own tokens, as a client of HTTP gets them (echo), over the bytes of
the text; documents are lines {"text": …} or {"messages": […]}, of which the text is what a chat template makes.  Without
--text: texts that the demo model's grammar writes from a seed of their own.  Of the demo model also those of the GGUF files that llama.cpp's
quantizer makes, by llama.cpp and by Switchyard, where the packages llama_cpp, gguf and torch are.  --dataset: also of int4 that `switchyard
quantize` calibrates by these packed tokens (int4_calibrated).  Speed: prefill of 512 tokens and decode at
batch 1 and 16; formats take turns, in an order that moves on by one from round to round, and a figure is the median over rounds of the ratio
to none.
"""
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import report
from switchyard_engine import Switchyard

FORMATS = ("none", "int8", "int4")
CALIBRATED = "int4_calibrated"
TARGETS = {"int8_bits": 1.002, "int4_bits": 1.02, f"{CALIBRATED}_bits": 1.02}
MOST_BITS = 1.25  # over those of the unquantized form: above it answers are wrong and not merely rounded
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


def post(engine, path, body):
    request = urllib.request.Request(engine.http + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def bits_per_byte(engine, texts):
    """Of all texts but their first tokens, which nothing predicts."""
    bits = size = 0
    for text in texts:
        body = {"prompt": text, "max_tokens": 1, "echo": True, "logprobs": 0, "temperature": 0}
        choice = post(engine, "/v1/completions", body)["choices"][0]["logprobs"]
        scored = choice["token_logprobs"][1:-1]  # the last is the one new token's
        bits -= sum(scored) / math.log(2)
        size += len(text.encode()) - len(choice["tokens"][0].encode())
    return bits / size


def check_bits(bits, reference):
    """Ends the program unless every form predicts the texts nearly as well as `reference` does."""
    for name, value in bits.items():
        if not value <= MOST_BITS * bits[reference]:
            sys.exit(f"{Path(sys.argv[0]).name}: {name} has {value:.4f} bits per byte, {reference} {bits[reference]:.4f}: its answers are wrong")


def beside_llama(args, folder, texts, reference):
    """{kind: (Switchyard's, llama.cpp's)} bits per byte of the same files; `reference`: an engine that tokenizes."""
    import gguf  # noqa: F401
    import torch  # noqa: F401

    import demo_model_gguf
    import few_bits
    from peer_engines import LlamaPeer

    source = folder / "bf16.gguf"
    demo_model_gguf.write(source)
    ids = [post(reference, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] for text in texts]
    first = [len(post(reference, "/detokenize", {"tokens": each[:1]})["prompt"].encode()) for each in ids]
    size, found = sum(len(text.encode()) for text in texts) - sum(first), {}
    for kind in ("BF16", *few_bits.KINDS):
        path = source if kind == "BF16" else folder / f"{kind}.gguf"
        if kind != "BF16":
            few_bits.quantize(source, path, kind)
        with Switchyard(args.bin, path, folder / f"{kind}.log", threads=args.threads,
                        flags=["--http_port=0", f"--tokenizer={demo_model_gguf.FOLDER}/tokenizer.json"]) as engine:
            ours = bits_per_byte(engine, texts)
        peer = LlamaPeer(path, args.threads, cache_tokens=2048)
        theirs = -sum(sum(peer.log_probabilities(each, demo_model_gguf.VOCAB)) for each in ids) / math.log(2) / size
        peer.close()
        found[kind] = (ours, theirs)
        report.log(f"{kind}: {ours:.5f} bits per byte, llama.cpp {theirs:.5f}")
    return found


def random_ids(count, seed, most):
    source = random.Random(seed)
    return [source.randrange(300, most) for _ in range(count)]


def measure(engine, case, number, most):
    batch = CASES[case]
    if batch is None:
        return engine.prefill_rate(random_ids(512, 1000 + number, most))
    return engine.decode_rate([random_ids(64, 7000 + 100 * number + i, most) for i in range(batch)], 32)


def calibrate(args, output):
    """Returns the directory that `switchyard quantize` writes."""
    subprocess.run([str(Path(args.bin) / "switchyard"), "quantize", f"--model={args.model}", f"--output={output}", "--format=int4",
                    f"--dataset={args.dataset}", f"--threads={args.threads}"], check=True)
    return str(output)


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--model", default=str(report.ROOT / "deploy/demo-model"))
    parser.add_argument("--text", help="JSON lines")
    parser.add_argument("--dataset", help="packed tokens (.bin) of the model's tokenizer")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bits_only", action="store_true", help="no speed")
    parser.add_argument("--dummy", action="store_true", help="random weights for the model's config.json: speed alone")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    texts = [] if args.dummy else read_texts(args.text, args.documents) if args.text else texts_of_the_grammar(args.documents)
    vocabulary = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    load, figures, rates, bits = report.load_average(), {}, {}, {}
    with tempfile.TemporaryDirectory(prefix="sy-bench-") as folder, ExitStack() as stack:
        served = {name: (args.model, name) for name in FORMATS}
        if args.dataset:
            served[CALIBRATED] = (calibrate(args, Path(folder) / "calibrated"), "auto")
        names = list(served)
        engines = {name: stack.enter_context(Switchyard(args.bin, model, Path(folder) / f"{name}.log", threads=args.threads,
                                                        flags=[f"--quantization={held}", "--http_port=0", *(["--load_format=dummy"] if args.dummy else [])]))
                   for name, (model, held) in served.items()}
        for name, engine in engines.items():
            if texts:
                bits[name] = bits_per_byte(engine, texts)
        check_bits(bits, "none")
        files = {}
        if texts and not args.text and args.model == parser.get_default("model"):
            try:
                files = beside_llama(args, Path(folder), texts, engines["none"])
            except ImportError as error:
                report.log(f"no files of llama.cpp's: no Python package {error.name}")
        for case in () if args.bits_only else CASES:
            rows = []
            for i in range(rounds + 1):
                order = names[i % len(names):] + names[:i % len(names)]
                rows += [{name: measure(engines[name], case, i, vocabulary) for name in order}] * (i > 0)  # the first warms up
            for name in names:
                rates[f"{name}_{case}"] = round(statistics.median(row[name] for row in rows), 1)
                if name != "none":
                    figures[f"{name}_{case}"] = statistics.median(row[name] / row["none"] for row in rows)
    for name in names[1:]:
        if texts:
            figures[f"{name}_bits"] = bits[name] / bits["none"]
    cases = () if args.bits_only else CASES
    head = ["", "bits per byte", *(f"{case}, tokens/s" for case in cases), "ratios to none"]
    report.table([head] + [[name, f"{bits[name]:.4f}" if texts else None, *(rates[f"{name}_{case}"] for case in cases),
                            " ".join(f"{figures[f'{name}_{case}']:.2f}" for case in cases) if name != "none" else None] for name in names])
    if files:
        report.table([["llama.cpp's file", "bits per byte", "llama.cpp's", "over bf16", "llama.cpp's"]] + [
            [kind, f"{ours:.4f}", f"{theirs:.4f}", f"{ours / bits['none']:.4f}", f"{theirs / files['BF16'][1]:.4f}"] for kind, (ours, theirs) in files.items()])
    report.finish("quantization", figures, {"rates": rates, "bits_per_byte": {k: round(v, 5) for k, v in bits.items()},
                                            "targets": TARGETS, "llama_files": files, "documents": len(texts),
                                            "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
