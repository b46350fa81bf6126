"""Modes of expert placement beside each other: 4, 8 or 16 workers, each in a network namespace with a shaped link.

Messages are real; experts' compute and weight copies are time that passes (scaled hardware, spec/papers.md A5);
decisions are the scheduler's own code, and its CPU time is charged, scaled, wherever it blocks.  Modes take turns batch by
batch in changing order; figures are medians and 95th percentiles over the layers of the batches, with bootstrap
intervals over batches, beside those of `ideal` (a gate that is forced to be balanced).

Data: the demo model's routing (--trace, --fit: `switchyard trace record`; without, recorded here from the repository's
own files), and chains tuned to the Lina paper's skew and pattern.  Needs root or user namespaces and iproute2.  Parts may be
run one by one (--only).
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import placement_figures as figures
import report
from emulated_cluster import Cluster, enter_namespace
from record_traces import KINDS, traces

# The emulated layer is the paper's with 16 GPUs, 12 layers (LI-2, LI-3): its all-to-alls take 102 ms / 12 = 8.5 ms,
# three quarters of it, and 14.8 ms pass between two layers; an expert (16.8 MB) is copied in 0.8 ms.  Four times as slow
# here, so that sixteen workers leave two cores idle in between; between two layers less passes, which only leaves less
# to hide copies behind, so that all takes less than twenty minutes.
STRETCH = 4
EXCHANGE_MS = 8.5 * STRETCH  # both ways, of a balanced layer
COMPUTE_MS = 2.8 * STRETCH
DENSE_MS = 8
COPY_MS = 0.8 * STRETCH
RANK_BYTES = 128 << 10  # that a rank sends in a balanced layer, each way, whatever its rows
BURST = 12 << 10
ALWAYS = ["static", "agreed:1", "agreed:2", "ideal"]
SOMETIMES = ["static+spare:1", "static+spare:2", "central:1", "no_estimate:1", "no_finetune:1", "oracle:1"]
FEW = 8  # of so many batches one is run in the modes of SOMETIMES, too
TABLES = {  # part: (data, workers, tokens)
    "real256": ("real", 16, 256), "real2048": ("real", 16, 2048), "chain256": ("chain", 16, 256),
    "chain2048": ("chain", 16, 2048), "real8": ("real", 8, 256), "real4": ("real", 4, 256)}
PARTS = [*TABLES, "domains", "estimators", "decision"]
PAPER = """
The paper's rows (spec/papers.md A4; other models, data and GPUs; TXL, BERT with 16 experts)
  LI-16, 17  static / Lina, batch: median 1.45, 1.46; 95 % 1.82, 1.68
  LI-18, 19  static / Lina, MoE layer: 95 % 1.77, 1.81; its all-to-alls 1.96 on average, 2.50 at most
  LI-20      no_estimate / central, batch: median 1.24, 1.19
  LI-21      no_finetune / central, batch: 95 % 1.27, 1.33
  LI-22      a phase of the scheduler 6.2 ms, 1.45 ms where nothing changes; placed anew in 23 %
  LI-23      central / ideal, batch, TXL: median, 95 %, fine-tuned, accuracy
             l = 1: 1.41, 1.32, 76.5 %, 31.6 %   l = 3: 1.16, 1.04, 25.7 %, 60.4 %   l = 6: 1.19, 1.11, 22.5 %, 71.4 %
             BERT  1.34, 1.35, 71.3 %, 28.3 %          1.07, 1.04, 32.2 %, 63.5 %          1.09, 1.11, 27.1 %, 66.0 %
  LI-24      3.67 experts a layer out of order
  LI-25      central / ideal on other data: 95 % 1.04 to 1.11, accuracy 62 to 69 %"""


def cpu_times():
    return [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def idle_share(before, after):
    delta = [b - a for a, b in zip(before, after)]
    return (delta[3] + delta[4]) / max(1, sum(delta))


def hardware(workers, rows):
    """Flags of a worker: what a row and a link take, and what the policy believes of them."""
    row_bytes = max(1, RANK_BYTES // max(1, rows // workers))
    sent = RANK_BYTES * (workers - 1) / workers
    link = sent / (EXCHANGE_MS / 2 * 1e-3)
    return link, row_bytes, [f"--row_bytes={row_bytes}", f"--row_us={COMPUTE_MS * 1e3 / (rows / workers)}", f"--dense_us={DENSE_MS * 1e3}",
                  f"--copy_us={COPY_MS * 1e3}", f"--policy_scale={STRETCH}", f"--link_bytes_per_s={link}"]


def run_workers(binary, workers, link_bytes_per_s, arguments):
    """Results of all ranks, what decisions took, and the share of the CPU that was idle."""
    with tempfile.TemporaryDirectory() as directory, Cluster(workers, link_bytes_per_s * 8, BURST) as cluster:
        output = Path(directory) / "run"
        addresses = ",".join(cluster.address(rank) for rank in range(workers))
        before = cpu_times()
        started = [cluster.start(rank, [binary, f"--rank={rank}", f"--addresses={addresses}", f"--output={output}", *arguments])
                   for rank in range(workers)]
        codes = [worker.wait() for worker in started]
        idle = idle_share(before, cpu_times())
        if any(codes):
            sys.exit(f"placement.py: workers ended with {codes}")
        lines = [[json.loads(line) for line in Path(f"{output}.{rank}").read_text().splitlines()] for rank in range(workers)]
        decisions = dict(line.split() for line in Path(f"{output}.decisions").read_text().splitlines()[1:])
        return figures.slowest(lines), {mode: float(seconds) * 1e6 for mode, seconds in decisions.items()}, idle


def measure(options, title, workers, tokens, top_k, source, sometimes=SOMETIMES):
    """Prints a table; returns the runs and whether they count."""
    link, row_bytes, scaled = hardware(workers, tokens * top_k)
    arguments = [*source, *scaled, f"--tokens={tokens}", f"--batches={options.batches}", f"--modes={','.join(ALWAYS)}",
                 f"--few_modes={','.join(sometimes)}", f"--few={FEW}"]
    runs, decide_us, idle = run_workers(str(Path(options.bin) / "placement_worker"), workers, link, arguments)
    print(f"\n{title}, {workers} workers, {tokens} tokens a batch; {idle:.0%} of the CPU idle"
          + (": VOID, less than 20 %" if idle < 0.2 else ""), flush=True)
    row_ms = {"link": 2e3 * row_bytes / link, "compute": COMPUTE_MS * workers / (tokens * top_k)}
    figures.print_modes(runs, decide_us, row_ms)
    return runs, idle >= 0.2


def run_table(options, name, worst):
    data, workers, tokens = TABLES[name]
    real = data == "real"
    source = options.real if real else ["--chain", "--estimator=path"]
    runs, counts = measure(options, f"{name}: " + ("demo model, mixed kinds of text" if real else "chains"), workers, tokens,
                           2 if real else 1, source)
    found = figures.figures_of(runs)
    figures.print_figures(found, runs)
    if workers == 16 and counts:
        figures.keep_worst(worst, found if real else {**found, "static_over_agreed_chain": found["static_over_agreed"]})


def run_domains(options):
    """One kind of text each, and the last with a profile that never saw it; of these few batches no target is taken."""
    few = {**vars(options), "batches": max(10, options.batches // 8)}
    options = type(options)(**few)
    fit = [flag for flag in options.real if not flag.startswith("--estimator")]
    last = options.labels[-1]
    runs = [(f"{label} alone", [*options.real, f"--label={label}"]) for label in options.labels]
    path = [*fit, "--estimator=path", f"--label={last}"]
    runs += [(f"{last} alone, path estimate, in the profile", path),
             (f"{last} alone, path estimate, not in the profile", [*path, f"--leave_out={last}"])]
    for title, source in runs:
        measured, _ = measure(options, title, 16, 256, 2, source, sometimes=[])
        for key, value in figures.figures_of(measured).items():
            print(f"  {key} {value:.3f}")


def run_program(options, name, *arguments):
    """Prints what another benchmark prints; returns its figures."""
    print(f"\n{name} {' '.join(arguments)}", flush=True)
    done = subprocess.run([str(Path(options.bin) / name), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"placement.py: {name}: {done.stderr}")
    *text, last = done.stdout.rstrip().split("\n")
    print("\n".join(text), flush=True)
    return json.loads(last)


def run_estimators(options, worst):
    """Accuracy by estimator, path length and batch; on chains beside the Bayes estimator's."""
    fit, trace = options.fit, options.trace
    worst.update(run_program(options, "popularity_bench", f"--fit={fit}", f"--test={trace}"))
    run_program(options, "popularity_bench", "--chain")


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--trace", help="routing that is run; without: recorded here")
    parser.add_argument("--fit", help="routing of which the profile is made")
    parser.add_argument("--estimator", help="path, or a channel of the traces (default: probe, path where recorded here)")
    parser.add_argument("--labels", nargs="+", default=list(KINDS), help="kinds of text in the traces that are run alone")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of the table")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--cache", default=str(report.ROOT / "build/bench"), help="folder for recorded traces, kept")
    options = parser.parse_args()
    if bool(options.trace) != bool(options.fit):
        parser.error("--trace and --fit go together")
    estimator = options.estimator or ("probe" if options.trace else "path")
    if not options.trace:
        options.fit, options.trace = traces(options.bin, options.cache)
    enter_namespace()
    options.real = [f"--trace={options.trace}", f"--fit={options.fit}", f"--estimator={estimator}"]
    options.batches = 12 if options.quick else options.batches
    worst = {}
    for name in options.only:
        if name in TABLES:
            run_table(options, name, worst)
        elif name == "domains":
            run_domains(options)
        elif name == "estimators":
            run_estimators(options, worst)
        else:
            worst.update(run_program(options, "placement_replay"))
    print(PAPER)
    report.finish("placement", worst, {"parts": options.only, "batches": options.batches, "load_average": report.load_average()})


if __name__ == "__main__":
    main()
