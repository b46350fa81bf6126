"""Modes of expert placement beside each other: 4, 8 or 16 workers, each in a network namespace with a shaped link.

Messages are real and as long as their rows; experts' compute and weight copies are time that passes (scaled hardware,
spec/papers.md A5); decisions are the scheduler's own code, and its CPU time is charged, scaled, wherever it blocks.  All
modes run every batch, in changing order; figures are medians and 95th percentiles over the batches with bootstrap
intervals, beside those of `ideal` (a gate that is forced to be balanced).

Data: a trace of the demo model's routing (--trace, --fit: `switchyard trace record`), and chains tuned to the Lina
paper's skew and pattern.  Needs root or user namespaces, iproute2, and about a fifth of the CPU idle.
"""
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report
from emulated_cluster import Cluster, enter_namespace

# One A100 of four behind a 100 Gb/s link, 1/200 as fast; rows of 1024 bf16 numbers; an expert of 1024 x 4096 (16.8 MFLOP
# a row); a copy of one to a slot takes a fortieth of a layer's attention, as in the paper's larger batches.
BITS_PER_SECOND = 125e6
ROW_BYTES = 2048
ROW_US = 18
DENSE_US = 4000
COPY_US = 1600
SCALE = 200
MODES = ["static", "static+spare:1", "static+spare:2", "central:1", "no_estimate:1", "no_finetune:1", "agreed:1", "agreed:2", "oracle:1",
         "ideal"]


def idle_share(before, after):
    delta = [b - a for a, b in zip(before, after)]
    return (delta[3] + delta[4]) / max(1, sum(delta))


def cpu_times():
    return [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def run_workers(binary, world, arguments):
    """Lines of rank 0, and the share of the CPU that was idle."""
    with tempfile.TemporaryDirectory() as directory, Cluster(world, BITS_PER_SECOND) as cluster:
        before = cpu_times()
        workers = []
        for rank in range(world):
            command = [binary, f"--rank={rank}", f"--world={world}", f"--address={cluster.address(rank)}",
                       f"--directory={directory}", *arguments]
            workers.append(cluster.start(rank, command, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True))
        lines = []
        for line in workers[0].stdout:
            lines.append(json.loads(line))
            if len(lines) % 500 == 0:
                report.log(f"  {len(lines)} runs")
        codes = [worker.wait() for worker in workers]
        if any(codes):
            sys.exit(f"placement.py: workers ended with {codes}")
        return lines, idle_share(before, cpu_times())


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def interval(values, figure, rounds=400):
    source = random.Random(1)
    drawn = sorted(figure([source.choice(values) for _ in values]) for _ in range(rounds))
    return drawn[int(0.025 * rounds)], drawn[int(0.975 * rounds)]


class Row:
    """What one mode took over the batches of one setting."""

    def __init__(self, lines, mode):
        own = [line for line in lines if line.get("mode") == mode and "batch" in line]
        self.batch = [line["batch_ms"] for line in own]
        self.layer = [ms for line in own for ms in line["layers_ms"]]
        layers = sum(len(line["layers_ms"]) for line in own)
        self.fine_tuned = sum(line["fine_tuned"] for line in own) / layers
        self.copies = sum(line["copies"] for line in own) / layers
        self.decide_us = next(line["decide_us"] for line in lines if line.get("mode") == mode and "decide_us" in line)


def print_rows(rows):
    ideal = rows["ideal"]
    cells = [["mode", "layer ms", "interval", "95 %", "/ ideal", "95 % / ideal", "batch ms", "95 %", "copies/layer", "fine-tuned", "decide us"]]
    for mode, row in rows.items():
        median, tail = statistics.median(row.layer), percentile(row.layer, 0.95)
        low, high = interval(row.layer, statistics.median)
        cells.append([mode, median, f"{low:.2f}-{high:.2f}", tail, median / statistics.median(ideal.layer), tail / percentile(ideal.layer, 0.95),
                      statistics.median(row.batch), percentile(row.batch, 0.95), row.copies, row.fine_tuned, row.decide_us])
    report.table(cells)


def figures_of(rows):
    median = {mode: statistics.median(row.layer) for mode, row in rows.items()}
    tail = {mode: percentile(row.layer, 0.95) for mode, row in rows.items()}
    return {
        "gap_closed": (median["static"] - median["agreed:2"]) / (median["static"] - median["ideal"]),
        "agreed_p95_over_ideal": tail["agreed:2"] / tail["ideal"],
        "agreed1_p95_over_ideal": tail["agreed:1"] / tail["ideal"],
        "static_over_agreed": median["static"] / median["agreed:2"],
    }


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--trace", help="routing that is run; without: tuned chains")
    parser.add_argument("--fit", help="routing of which the profile is made")
    parser.add_argument("--estimator", default="probe")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--batches", type=int, default=400)
    options = parser.parse_args()
    if bool(options.trace) != bool(options.fit):
        parser.error("--trace and --fit go together")
    enter_namespace()
    batches = 20 if options.quick else options.batches
    worst = {}
    for tokens in options.tokens:
        source = [f"--trace={options.trace}", f"--fit={options.fit}", f"--estimator={options.estimator}"]
        arguments = [*(source if options.trace else ["--chain", "--estimator=path"]), f"--tokens={tokens}",
                     f"--batches={batches}", f"--modes={','.join(MODES)}",
                     f"--row_bytes={ROW_BYTES}", f"--row_us={ROW_US}", f"--dense_us={DENSE_US}", f"--copy_us={COPY_US}",
                     f"--policy_scale={SCALE}", f"--link_bytes_per_s={BITS_PER_SECOND / 8}"]
        lines, idle = run_workers(str(Path(options.bin) / "placement_worker"), options.workers, arguments)
        print(f"\n{options.workers} workers, {tokens} tokens a batch; {idle:.0%} of the CPU idle"
              + (": VOID, less than 20 %" if idle < 0.2 else ""))
        rows = {mode: Row(lines, mode) for mode in MODES}
        print_rows(rows)
        for key, value in figures_of(rows).items():
            better = min if key in ("gap_closed", "static_over_agreed") else max
            worst[key] = better(worst.get(key, value), value)
    report.finish("placement", worst, {"workers": options.workers, "batches": batches, "load_average": report.load_average()})


if __name__ == "__main__":
    main()
