"""Rows cut into micro-batches, so that those of one travel while experts compute another's: prefill of 512 tokens of an
OLMoE-shaped model with random bf16 weights by two workers of one thread each, as a gRPC client sees it.

On links of --mbit (each worker has a network namespace) and on loopback: --micro_batches=1 beside auto, both servers up and in turns;
--fixed=N,… beside 1 too, one after the other; then --combine=added, with 1 and with auto, which sends less back and rounds otherwise.  auto has its trials before the rounds that count, and in them as they come.
overlap_prefill and auto_over_plain are times of 1 over auto's, added_prefill those of 1 over added's with auto, sums over all rounds; the tables have medians of the ratios within a round.

Needs root or user namespaces, and the Python packages torch and safetensors (the checkpoint).  Checked: the same first tokens, but with added,
where it is said.
"""
import random
import statistics
import sys
import tempfile
from pathlib import Path

import olmoe_checkpoint as shape
import report
from emulated_cluster import Cluster, enter_namespace
from switchyard_engine import Switchyard, SwitchyardOnLinks

PROMPT = 512
WARM_UP, ROUNDS = 30, 60  # prompts
KV_CACHE = ["--kv_cache_bytes=67108864"]
TARGETS = {"overlap_prefill": 1.15, "auto_over_plain": 0.98}


def flags(way):
    number, *added = way.split()
    # The workers stand for two machines, so experts stay where they are.
    return ["--placement=static", f"--micro_batches={number}", *(["--combine=added"] if added else [])]


def prompt(seed):
    source = random.Random(seed)
    return [source.randrange(3, shape.EOS) for _ in range(PROMPT)]


def measure(plain, other, warm_up, rounds, first, added):
    """[(seconds of plain, of other)], prompts in turns."""
    for server in (plain, other):
        for i in range(warm_up):
            server.bench([prompt(first + i)], 1)
    if plain.generate([prompt(first)], 1)[0]["token_ids"] != other.generate([prompt(first)], 1)[0]["token_ids"]:
        if not added:
            sys.exit("micro_batches.py: another first token")
        report.log("added: another first token")
    times = []
    for i in range(rounds):
        pair = [None, None]
        for at in random.Random(i).sample([0, 1], 2):
            pair[at] = (plain, other)[at].bench([prompt(first + warm_up + i)], 1)["ttft_seconds"]["max"]
        times.append(tuple(pair))
    return times


def row(link, name, times, chosen):
    ratios = sorted(a / b for a, b in times)
    return [link, name, f"{statistics.median(a for a, _ in times):.3f}", f"{statistics.median(b for _, b in times):.3f}",
            f"{sum(a for a, _ in times) / sum(b for _, b in times):.3f}", f"{statistics.median(ratios):.3f}", chosen]


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--cache", default=str(report.ROOT / "build/bench"), help="folder for the checkpoint, kept")
    parser.add_argument("--layers", type=int, default=shape.LAYERS)
    parser.add_argument("--mbit", type=int, default=1000, help="of each worker's link (1000, of which the target is)")
    parser.add_argument("--only", choices=["link", "loopback"], help="one of the two")
    parser.add_argument("--fixed", default="", help="numbers of micro-batches to measure, too, by commas")
    args = parser.parse_args()
    report.require("torch", "safetensors")
    load = report.load_average()
    enter_namespace()
    model = shape.ensure_hf(args.cache, report.log, args.layers)
    warm_up, rounds = (25, 10) if args.quick else (WARM_UP, ROUNDS)
    others = ["auto", *filter(None, args.fixed.split(",")), "1 added", "auto added"]
    if "1" in args.fixed.split(","):
        parser.error("--fixed=1 is what the others stand beside")
    rows, figures = [["link", "--micro_batches", "1, s", "this, s", "1 over this, all", "median", "steps that were cut"]], {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, Cluster(3, args.mbit * 1e6) as cluster:
        def on_links(way, port):
            return SwitchyardOnLinks(cluster, args.bin, model, Path(folder) / way.replace(" ", "-"), port, [*KV_CACHE, *flags(way)])

        def local(way, _):
            return Switchyard(args.bin, model, Path(folder) / f"local-{way.replace(' ', '-')}.log", workers=2, threads=1, flags=flags(way),
                              kv_cache_bytes=64 << 20)

        for link, make, name in ((f"{args.mbit} Mb/s", on_links, "overlap_prefill"), ("loopback", local, "auto_over_plain")):
            if args.only == ("link" if link == "loopback" else "loopback"):
                continue
            with make("1", 50200) as plain:
                for at, way in enumerate(others):
                    with make(way, 50201 + at) as other:
                        times = measure(plain, other, warm_up if "auto" in way else 2, rounds, 1000 * at, "added" in way)
                        cut = f"{other.metric('switchyard_cut_steps_total'):.0f}" if "auto" in way else ""
                    rows.append(row(link, way, times, cut))
                    report.log(" ".join(rows[-1]))
                    figure = {"auto": name, "auto added": "added_prefill" if link != "loopback" else None}.get(way)
                    if figure:
                        figures[figure] = sum(a for a, _ in times) / sum(b for _, b in times)
    report.table(rows)
    report.finish("micro_batches", figures, {"targets": TARGETS, "layers": args.layers, "mbit": args.mbit, "rounds": rounds, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
