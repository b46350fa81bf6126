#!/usr/bin/env python3
"""What constrained outputs cost: the time between two tokens at batch 16, as a gRPC client sees it.

  constraints.py [--model=DIR] [--workers=1] [--before=ITS_BUILD_DIR/bin]

Sixteen requests at once on the demo model, in turns: none constrained, one of them, all of them, by a JSON schema of an array
of many short strings, so that each goes on for the same number of tokens.  A figure is the median over the rounds of the ratio
of the median times between tokens within a round; the target is at most 1.05.  --before: the same with another build, whose
rounds take turns with ours.

Checked: the constrained outputs are the beginning of what the schema says, and the same alone and among fifteen others.
"""
import contextlib
import json
import random
import re
import statistics
import sys
import tempfile
from pathlib import Path

import report
from switchyard_engine import Switchyard

BATCH, TOKENS, PROMPT = 16, 128, 32
TARGET = 1.05
SCHEMA = {"type": "array", "minItems": 400, "maxItems": 400, "items": {"type": "string", "minLength": 4, "maxLength": 12}}
CHAR = r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])'
BEGINNING = re.compile(rf'\[\s*("{CHAR}{{4,12}}"\s*,\s*)*("{CHAR}{{0,12}}(\\(u[0-9a-fA-F]{{0,3}})?|"\s*,?\s*)?)?')
CASES = {"none": 0, "one": 1, "all": BATCH}


def requests(constrained, seed):
    source = random.Random(seed)
    made = []
    for i in range(BATCH):
        request = {"token_ids": [source.randrange(300, 2000) for _ in range(PROMPT)], "ignore_eos": True}
        if i < constrained:
            request = {**request, "json_schema": SCHEMA, "ignore_eos": False}
        made.append(request)
    return made


def check(engine):
    batch = requests(BATCH, 1)
    together = [answer["text"] for answer in engine.generate(batch, TOKENS)]
    for text in together:
        if not BEGINNING.fullmatch(text):
            sys.exit(f"constraints.py: not the beginning of such an array: {text!r}")
    if engine.generate(batch[:1], TOKENS)[0]["text"] != together[0]:
        sys.exit("constraints.py: an output alone differs from that in a batch")


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--model", default=str(report.ROOT / "deploy/demo-model"))
    parser.add_argument("--workers", type=int, default=1, help="of one thread each")
    parser.add_argument("--before", help="folder of the programs of another build")
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    load = report.load_average()
    folder = Path(tempfile.mkdtemp(prefix="constraints."))
    seconds, waits = {}, {}
    with contextlib.ExitStack() as stack:
        builds = {"now": args.bin, **({"before": args.before} if args.before else {})}
        engines = {name: stack.enter_context(Switchyard(bins, args.model, folder / f"{name}.log", args.workers, threads=1))
                   for name, bins in builds.items()}
        for engine in engines.values():
            check(engine)
        turns = [(build, case) for build in engines for case in CASES]
        for i in range(rounds + 1):
            for build, case in turns if i % 2 else reversed(turns):
                done = engines[build].bench(requests(CASES[case], 100 + i), TOKENS)
                if i > 0:  # the first warms up
                    seconds.setdefault((build, case), []).append(done["inter_token_seconds"]["p50"])
        if "now" in engines:
            waits = {name: engines["now"].metric(f"switchyard_constraint_{name}") for name in ("wait_seconds_sum", "wait_seconds_count", "masks_total")}
    figures = {}
    rows = [["build", "constrained", "ms between tokens", "over none"]]
    for build, case in turns:
        ratios = [a / b for a, b in zip(seconds[build, case], seconds[build, "none"])]
        figures[f"{build}_{case}"] = round(statistics.median(ratios), 4)
        rows.append([build, f"{CASES[case]} of {BATCH}", f"{1e3 * statistics.median(seconds[build, case]):.3f}", f"{statistics.median(ratios):.3f}"])
    report.table(rows)
    within = all(figures[f"now_{case}"] <= TARGET for case in CASES)
    print(f"target: at most {TARGET}; {'met' if within else 'MISSED'}")
    print(json.dumps({"benchmark": "constraints", **report.machine(), "rounds": rounds, "workers": args.workers, "over_none": figures, "waits": waits,
                      "load_average": [load, report.load_average()]}))


main()
