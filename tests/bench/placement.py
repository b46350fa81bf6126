"""Modes of expert placement beside each other: 4, 8 or 16 workers, each in a network namespace with a shaped link.

Messages are real; experts' compute and weight copies are time that passes (scaled hardware, scheduler/PAPERS.md, "Emulated clusters");
decisions are the scheduler's own code, and its CPU time is charged, scaled, wherever it blocks.  Modes take turns batch by
batch in changing order; figures are medians and 95th percentiles over the layers of the batches, with bootstrap
intervals over batches, beside those of `ideal` (a gate that is forced to be balanced).

What a part printed and gave is kept in --results, so that parts may be run one by one (--only) and put into one table
(--merge).  A part that fails, or had too little idle CPU, is run once more if there is time.

Data: the demo model's routing (--trace, --fit: `switchyard trace record`; without, recorded here from the repository's
own files), and chains tuned to the Lina paper's skew and pattern.  Needs root or user namespaces and iproute2.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import parts
import placement_figures as figures
import report
from emulated_cluster import Cluster, enter_namespace
from record_traces import KINDS, traces

# The emulated layer is the paper's with 16 GPUs, 12 layers (LI-2, LI-3 of scheduler/PAPERS.md): its all-to-alls take 102 ms / 12 = 8.5 ms,
# three quarters of it, and 14.8 ms pass between two layers; an expert (16.8 MB) is copied in 0.8 ms.  Five times as slow
# here (--stretch), so that sixteen workers leave two cores idle in between; between two layers less passes, which only
# leaves less to hide copies behind, so that all takes less than twenty minutes.
STRETCH = 5
EXCHANGE_MS = 8.5  # both ways, of a balanced layer; this, compute and copies times the stretch
COMPUTE_MS = 2.8
COPY_MS = 0.8
DENSE_MS = 8
RANK_BYTES = 128 << 10  # that a rank sends in a balanced layer, each way, whatever its rows
BURST = 12 << 10
ALWAYS = ["static", "agreed:1", "agreed:2", "ideal"]
SOMETIMES = ["static+spare:1", "static+spare:2", "lina:1", "no_estimate:1", "no_finetune:1"]
FEW = 8  # of so many batches one is run in the modes of SOMETIMES, too
TABLES = {  # part: (data, workers, tokens)
    "real256": ("real", 16, 256), "real2048": ("real", 16, 2048), "chain256": ("chain", 16, 256),
    "chain2048": ("chain", 16, 2048), "real8": ("real", 8, 256), "real4": ("real", 4, 256)}
TARGETS = [name for name, (_, workers, _) in TABLES.items() if workers == 16]  # the others run a quarter of the batches
PARTS = [*TABLES, "domains", "estimators", "decision"]
MINUTES = 19.5  # nothing is run again that would end later
PAPER = """
The paper's rows (scheduler/PAPERS.md; other models, data and GPUs; TXL, BERT with 16 experts)
  LI-16, 17  static / Lina, batch: median 1.45, 1.46; 95 % 1.82, 1.68
  LI-18, 19  static / Lina, MoE layer: 95 % 1.77, 1.81; its all-to-alls 1.96 on average, 2.50 at most
  LI-20      no_estimate / lina, batch: median 1.24, 1.19
  LI-21      no_finetune / lina, batch: 95 % 1.27, 1.33
  LI-22      a phase of the scheduler 6.2 ms, 1.45 ms where nothing changes; placed anew in 23 %
  LI-23      lina / ideal, batch, TXL: median, 95 %, fine-tuned, accuracy
             l = 1: 1.41, 1.32, 76.5 %, 31.6 %   l = 3: 1.16, 1.04, 25.7 %, 60.4 %   l = 6: 1.19, 1.11, 22.5 %, 71.4 %
             BERT  1.34, 1.35, 71.3 %, 28.3 %          1.07, 1.04, 32.2 %, 63.5 %          1.09, 1.11, 27.1 %, 66.0 %
  LI-24      3.67 experts a layer out of order
  LI-25      lina / ideal on other data: 95 % 1.04 to 1.11, accuracy 62 to 69 %"""


def hardware(stretch, workers, rows):
    """Flags of a worker: what a row and a link take, and what the policy believes of them."""
    row_bytes = max(1, RANK_BYTES // max(1, rows // workers))
    sent = RANK_BYTES * (workers - 1) / workers
    link = sent / (stretch * EXCHANGE_MS / 2 * 1e-3)
    return link, row_bytes, [f"--row_bytes={row_bytes}", f"--row_us={stretch * COMPUTE_MS * 1e3 / (rows / workers)}",
                  f"--dense_us={DENSE_MS * 1e3}", f"--copy_us={stretch * COPY_MS * 1e3}", f"--policy_scale={stretch}",
                  f"--link_bytes_per_s={link}"]


def run_workers(binary, workers, link_bytes_per_s, arguments):
    """Results of all ranks, what decisions took, and the share of the CPU that was idle."""
    with tempfile.TemporaryDirectory() as directory, Cluster(workers, link_bytes_per_s * 8, BURST) as cluster:
        output = Path(directory) / "run"
        addresses = ",".join(cluster.address(rank) for rank in range(workers))
        idle = cluster.run(
            lambda rank: [binary, f"--rank={rank}", f"--addresses={addresses}", f"--output={output}", *arguments])
        lines = [[json.loads(line) for line in Path(f"{output}.{rank}").read_text().splitlines()] for rank in range(workers)]
        decisions = dict(line.split() for line in Path(f"{output}.decisions").read_text().splitlines())
        distinct = int(decisions.pop("distinct"))
        return figures.slowest(lines), {mode: float(seconds) * 1e6 for mode, seconds in decisions.items()}, idle, distinct


def measure(options, title, workers, tokens, top_k, source, sometimes=SOMETIMES):
    """Prints a table; returns the runs, the share of the CPU that was idle, what ideal's links and compute take by
    themselves in ms, and how many batches the trace has."""
    link, row_bytes, scaled = hardware(options.stretch, workers, tokens * top_k)
    arguments = [*source, *scaled, f"--tokens={tokens}", f"--batches={options.batches}", f"--modes={','.join(ALWAYS)}",
                 f"--few_modes={','.join(sometimes)}", f"--few={FEW}"]
    runs, decide_us, idle, distinct = run_workers(str(Path(options.bin) / "placement_worker"), workers, link, arguments)
    estimate_us = decide_us.pop("estimate")
    print(f"\n{title}, {workers} workers, {tokens} tokens a batch, {options.batches} batches, {min(options.batches, distinct)} of them "
          f"distinct; an estimate takes {estimate_us:.0f} us; {idle:.0%} of the CPU idle"
          + (": VOID, less than 20 %" if idle < parts.LEAST_IDLE else ""), flush=True)
    row_ms = {"link": 2e3 * row_bytes / link, "compute": options.stretch * COMPUTE_MS * workers / (tokens * top_k)}
    figures.print_modes(runs, decide_us, row_ms, distinct)
    alone_ms = options.stretch * (EXCHANGE_MS + COMPUTE_MS)
    print(f"  ideal takes {figures.median_layer(runs['ideal']) / alone_ms:.3f} of what its links and its compute take by themselves; "
          f"by the old rule {figures.OLD_IDEAL[0]}", flush=True)
    return runs, idle, alone_ms, distinct


def with_batches(options, batches):
    return type(options)(**{**vars(options), "batches": batches})


# A part prints its table and returns {"figures": of targets, "idle": share of the CPU; not where nothing is timed}.


def run_table(options, name):
    data, workers, tokens = TABLES[name]
    real = data == "real"
    source = options.real if real else ["--chain", "--estimator=path"]
    if name not in TARGETS:
        options = with_batches(options, max(2, options.batches // 4))
    title = f"{name}: " + ("demo model, mixed kinds of text" if real else "chains")
    runs, idle, alone_ms, distinct = measure(options, title, workers, tokens, 2 if real else 1, source)
    found = figures.figures_of(runs, alone_ms)
    figures.print_figures(found, runs, alone_ms, distinct)
    if not real:
        found["static_over_agreed_chain"] = found["static_over_agreed"]
    return {"figures": found if name in TARGETS else {}, "idle": idle, "batches": options.batches}


def run_domains(options):
    """One kind of text each, and the last with a profile that never saw it; of these few batches no target is taken."""
    options = with_batches(options, max(10, options.batches // 8))
    fit = [flag for flag in options.real if flag.startswith(("--trace", "--fit"))]
    last = options.labels[-1]
    runs = [(f"{label} alone", [*options.real, f"--label={label}"]) for label in options.labels]
    path = [*fit, "--estimator=path", f"--label={last}"]
    runs += [(f"{last} alone, path estimate, in the profile", path),
             (f"{last} alone, path estimate, not in the profile", [*path, f"--leave_out={last}"])]
    least = 1
    for title, source in runs:
        measured, idle, alone_ms, _ = measure(options, title, 16, 256, 2, source, sometimes=[])
        least = min(least, idle)
        for key, value in figures.figures_of(measured, alone_ms).items():
            print(f"  {key} {value:.3f}")
    return {"figures": {}, "idle": least, "batches": options.batches}


def run_program(options, name, *arguments):
    """Prints what another benchmark prints; returns its figures."""
    print(f"\n{name} {' '.join(arguments)}", flush=True)
    done = subprocess.run([str(Path(options.bin) / name), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr}")
    *text, last = done.stdout.rstrip().split("\n")
    print("\n".join(text), flush=True)
    return json.loads(last)


def run_estimators(options):
    """Accuracy by estimator, path length and batch; on chains beside the Bayes estimator's."""
    found = run_program(options, "popularity_bench", f"--fit={options.fit}", f"--test={options.trace}")
    run_program(options, "popularity_bench", "--chain")
    return {"figures": found}


def run_part(options, name):
    if name in TABLES:
        return run_table(options, name)
    if name == "domains":
        return run_domains(options)
    return run_estimators(options) if name == "estimators" else {"figures": run_program(options, "decision_bench")}


def conclude(results):
    """Prints which parts count, and the worst of their figures as the line of JSON."""
    worst = {}
    print()
    for result in results.values():
        if parts.counts(result):
            figures.keep_worst(worst, {key: value for key, value in result["figures"].items() if not isinstance(value, str)})
    parts.print_not_counting(results)
    print(PAPER)
    report.finish("placement", worst, {"parts": parts.details(results, "stretch", "batches")})
    if not all(parts.counts(result) for result in results.values()):
        sys.exit(1)


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--trace", help="routing that is run; without: recorded here")
    parser.add_argument("--fit", help="routing of which the profile is made")
    parser.add_argument("--estimator", help="path, or a channel of the traces (default: probe, path where recorded here)")
    parser.add_argument("--labels", nargs="+", default=list(KINDS), help="kinds of text in the traces that are run alone")
    parts.add_arguments(parser, PARTS, "placement")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--stretch", type=float, default=STRETCH, help="how much slower than the paper's all is")
    parser.add_argument("--cache", default=str(report.ROOT / "build/bench"), help="folder for recorded traces, kept")
    options = parser.parse_args()
    if options.merge:
        return conclude(parts.kept(options))
    if bool(options.trace) != bool(options.fit):
        parser.error("--trace and --fit go together")
    estimator = options.estimator or ("probe" if options.trace else "path")
    if not options.trace:
        options.fit, options.trace = traces(options.bin, options.cache)
    enter_namespace()
    options.real = [f"--trace={options.trace}", f"--fit={options.fit}", f"--estimator={estimator}"]
    if estimator != "path":
        hidden = json.loads((report.ROOT / "deploy/demo-model/config.json").read_text())["hidden_size"]
        options.real.append(f"--probe_hidden={hidden}")
    options.batches = 12 if options.quick else options.batches
    conclude(parts.run(options, run_part, {"batches": options.batches, "stretch": options.stretch}, MINUTES))


if __name__ == "__main__":
    main()
