#!/usr/bin/env python3
"""What keys and values in 8 bits cost and give: of each --kv_cache_dtype beside auto bits per byte of text, and decode at a context's end.

  kv_cache.py [--model=DIR [--dummy]] [--documents=100] [--context=900] [--batch=8] [--rounds=5] [--threads=2] [--flag=FLAG …]

Bits per byte are of the demo model's grammar, as in quantization.py, but not with --dummy (random weights for the model's config.json: speed
alone).  Speed: tokens/s of so many sequences at once, whose prompts have so many tokens; forms take turns, and a figure is the median over
rounds of the ratio to auto.
"""
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import quantization
import report
from switchyard_engine import Switchyard

FORMS = ("auto", "int8", "fp8")
DECODE_TOKENS = 32


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--model", default=str(report.ROOT / "deploy/demo-model"))
    parser.add_argument("--dummy", action="store_true")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--context", type=int, default=900)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flag", action="append", default=[], help="of the server")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    config = json.loads((Path(args.model) / "config.json").read_text())
    texts = [] if args.dummy else quantization.texts_of_the_grammar(args.documents)
    load, figures, bits = report.load_average(), {}, {}
    with tempfile.TemporaryDirectory(prefix="sy-bench-") as folder, ExitStack() as stack:
        flags = ["--http_port=0", *args.flag, *(["--load_format=dummy"] if args.dummy else [])]
        engines = {form: stack.enter_context(Switchyard(args.bin, args.model, Path(folder) / f"{form}.log", threads=args.threads, kv_cache_bytes=2 << 30,
                                                        flags=[*flags, f"--kv_cache_dtype={form}"])) for form in FORMS}
        for form, engine in engines.items():
            if texts:
                bits[form] = quantization.bits_per_byte(engine, texts)
        quantization.check_bits(bits, "auto")
        prompts = [quantization.random_ids(args.context, 5000 + i, config["vocab_size"]) for i in range(args.batch)]
        rows = []
        for i in range(rounds + 1):
            order = FORMS[i % len(FORMS):] + FORMS[:i % len(FORMS)]
            rows.append({form: engines[form].decode_rate(prompts, DECODE_TOKENS) for form in order})
            report.log(f"round {i} of {rounds}{'' if i else ' (warms up, not counted)'}: " + ", ".join(f"{form} {rows[-1][form]:.1f}" for form in FORMS))
    rates = {form: statistics.median(row[form] for row in rows[1:]) for form in FORMS}
    for form in FORMS[1:]:
        figures[f"{form}_decode"] = statistics.median(row[form] / row["auto"] for row in rows[1:])
        if texts:
            figures[f"{form}_bits"] = bits[form] / bits["auto"]
    report.table([["", "bits per byte", f"{args.batch} at {args.context} tokens, tokens/s", "ratio to auto"]] + [
        [form, f"{bits[form]:.4f}" if texts else None, round(rates[form], 1), f"{figures[f'{form}_decode']:.2f}" if form != "auto" else None] for form in FORMS])
    report.finish("kv_cache", figures, {"rates": {form: round(rate, 1) for form, rate in rates.items()}, "bits_per_byte": bits, "context": args.context,
                                        "batch": args.batch, "rounds": rounds, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
