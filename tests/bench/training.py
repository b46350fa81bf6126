"""Modes of communication in training beside each other: 4, 8 or 16 workers, each in a network namespace, on nodes of four
whose links to each other are shaped as well as their own.

All-to-alls, sums of gradients and who goes first are the workers' own code (FormSocketGroup, GradientReducer, the executor of
MoE layers); layers' compute is time that passes.  Steps are the Lina paper's models (training_models.py, each figure with
its source), scaled.  Modes take turns step by step in changing order.

Links distinguish all-to-alls from sums and share themselves between them by weight, as if sums had so many connections to
each rank where an all-to-all has one: that number is calibrated, in mode fair on 16 workers, to the median slowdown of an
all-to-all under a sum (row LI-1 of scheduler/PAPERS.md; --connections: given), holds for all modes, and fair_1 is fair with one connection.

Part MODEL_WORKERS is a table; no table without an alpha-beta fit of its links with r2 > 0.99, and none counts with less
than 20 % of the CPU idle.  Parts trainers_N and trainers_N_P, which run when they are named, are real trainers
(training_trainers.py).
Needs root or user namespaces and iproute2.
"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import parts
import report
import training_figures as figures
import training_models as models
import training_trainers as trainers
from emulated_cluster import Cluster, Nodes, TrafficClass, enter_namespace

ROWS_TOS = 0x20
SUMS_TOS = [0x40, 0x48, 0x50, 0x58, 0x60, 0x68]
CONNECTIONS = [0.75, 0.9, 1, 1.25, 2]  # that are tried; below 1: sums share links as if all-to-alls had more of them
SLOWDOWN = 1.83  # LI-1 of scheduler/PAPERS.md
# By workers: with bursts of 12 KB an all-to-all by itself takes 4 ms besides its bytes among 16 ranks of two cores and none
# among 4 or 8; these make all alike.
BURST = {4: 12 << 10, 8: 12 << 10, 16: 20 << 10}
WORKERS = (4, 8, 16)
NAMES = {"txl": models.MODELS[0], "gpt2": models.MODELS[1], "bert2gpt2": models.MODELS[2]}
TABLES = [f"{name}_{workers}" for workers in (16, 4, 8) for name in NAMES]
PARTS = ["calibration", *TABLES]
TRAINERS = {"trainers_2": 2, "trainers_4": 4}
SHAPED = {f"trainers_{ranks}_{percent}": (ranks, percent) for ranks in TRAINERS.values() for percent in trainers.EXPOSED}
STRETCH = {4: 5, 8: 6, 16: 12}  # by workers: what a message takes besides its bytes is this machine's, most among many ranks
TRAINERS_SAME = ("rounds", "mbit", "trainer_modes", "trainer_config", "piece_kib")
SAME = (*TRAINERS_SAME, "bytes", "stretch", "burst", "layers", "modes", "packing", "connections", "quick", "processor")  # of parts in one table
# name: (mode, whether calibrated, whether packed)
MODES = {"fair_1": ("fair", False, False), "fair": ("fair", True, False), "fixed": ("fixed", True, False),
         "ar_last": ("ar_last", True, False), "priority": ("priority", True, False),
         "priority_ticketed": ("priority_ticketed", True, False), "partition": ("partition", True, False),
         "pipelining": ("pipelining", True, False), "preempt": ("preempt", True, False), "full": ("full", True, True)}
CALIBRATED = "bert2gpt2"  # the others' buckets are not full before backward's end: no all-to-all is under a sum
CALIBRATED_BY = ("bytes", "stretch", "burst", "layers", "quick", "processor")
MINUTES = 19.5  # nothing is run again that would end later
PAPER = {"LI-7": "2/4/8/16 experts 1.71 1.37 1.73 1.47", "LI-8 forward": "2, 8 experts 1.84 1.89", "LI-8 backward": "2.41 2.32",
         "LI-9": "4/8/16 2.21 2.39 2.31", "LI-12": "1.10 to 1.30, mean 1.24", "LI-13": "2/4/8/16 1.36 1.36 1.41 1.42",
         "pipelining": "little more than LI-13", "fixed": "the least gain"}


def burst_of(options, workers):
    return options.burst_kib << 10 or BURST[workers]


def scale_of(options, workers):
    return models.Scale(options.bytes, options.stretch or STRETCH[workers], options.layers)


def settings_of(options):
    """What is kept with each part."""
    return {**{key: getattr(options, key) for key in ("steps", "bytes", "layers", "modes", "quick")},
            "stretch": options.stretch or {str(workers): each for workers, each in STRETCH.items()},
            "burst": {str(workers): burst_of(options, workers) for workers in WORKERS},
            "packing": options.packing, **{key: getattr(options, key) for key in TRAINERS_SAME}}


def real_time():
    """What a worker is started with, so that it does not wait for other programs: each has processors of its own in what is
    emulated.  Nothing where that is not allowed."""
    command = ["chrt", "--fifo", "20"]
    allowed = shutil.which(command[0]) and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if allowed else []


def run_workers(options, model, workers, connections, modes, steps, probes):
    """What ranks wrote, and the share of the CPU that was idle.  connections: of sums, a class each."""
    scale = scale_of(options, workers)
    nodes = Nodes(models.GPUS_PER_NODE, scale.link(models.NODE_BYTES_PER_S) * 8) if workers > models.GPUS_PER_NODE else None
    classes = [TrafficClass(ROWS_TOS, 1), *(TrafficClass(tos, weight) for tos, weight in zip(SUMS_TOS, connections))]
    with tempfile.TemporaryDirectory() as directory, \
         Cluster(workers, scale.link(models.GPU_BYTES_PER_S) * 8, burst_of(options, workers), nodes, classes) as cluster:
        output, meeting = Path(directory) / "run", Path(directory) / "meeting"
        meeting.mkdir()
        addresses = ",".join(cluster.address(rank) for rank in range(workers))
        priority = real_time()
        idle = cluster.run(lambda rank: [
            *priority, str(Path(options.bin) / "training_worker"), f"--rank={rank}", f"--addresses={addresses}", f"--output={output}",
            f"--meeting={meeting}", f"--rows_tos={ROWS_TOS}", f"--modes={','.join(modes)}", f"--steps={steps}",
            f"--warm_up={options.warm_up}", f"--probes={probes}", *models.worker_flags(model, scale)])
        return [[json.loads(line) for line in Path(f"{output}.{rank}").read_text().splitlines()] for rank in range(workers)], idle


def calibrate(options, _):
    """The number of connections with which fair's all-to-alls under sums are slowed as LI-1's."""
    modes = ["ar_last=ar_last:64:1", *(f"fair_{weight}=fair:{tos}:1" for tos, weight in zip(SUMS_TOS, CONNECTIONS))]
    workers = 4 if options.quick else 16
    lines, idle = run_workers(options, NAMES[CALIBRATED], workers, CONNECTIONS, modes, options.steps, 0)
    steps = figures.split_lines(lines)[-1]["mode"]
    all_slowdowns = {weight: figures.slowdowns(steps, f"fair_{weight}") for weight in CONNECTIONS}
    rows = [["connections of sums", "all-to-alls under sums", "median slowdown", "worst"]]
    for weight, found in all_slowdowns.items():
        rows.append([str(weight), str(len(found)), median(found) if found else "none", max(found) if found else "none"])
    chosen = min((weight for weight in CONNECTIONS if all_slowdowns[weight]), default=1,
                 key=lambda weight: abs(median(all_slowdowns[weight]) - SLOWDOWN))
    print(f"\ncalibration of fair, {workers} workers, {CALIBRATED}, {idle:.0%} of the CPU idle "
          f"(LI-1: median 1.83, worst 4.14)")
    report.table(rows)
    print(f"  sums have {chosen} connections to each rank where an all-to-all has one", flush=True)
    return {"figures": {"connections": chosen}, "idle": idle, "connections": chosen, "modes": None, "packing": None}


def connections_of(options):
    """Given, or as calibrated on this machine with these settings: by this run or the last one that is kept."""
    if options.connections:
        return options.connections
    path = Path(options.results) / "calibration.json"
    hint = "; run part calibration before, or give --connections"
    if not path.exists():
        raise RuntimeError(f"fair is not calibrated{hint}")
    result = json.loads(path.read_text())
    why = result.get("error") or ("" if parts.counts(result) else f"{result['idle']:.0%} of the CPU was idle, must be "
                                  f"{parts.LEAST_IDLE:.0%}")
    if why:
        raise RuntimeError(f"the calibration of {path} is void: {why}{hint}")
    other = parts.difference(result, {**settings_of(options), **report.machine()}, CALIBRATED_BY)
    if other:
        raise RuntimeError(f"the calibration of {path} is another's: {other}{hint}")
    return result["figures"]["connections"]


def run_table(options, name):
    model, workers = NAMES[name.rsplit("_", 1)[0]], int(name.rsplit("_", 1)[1])
    connections = connections_of(options)
    modes = [f"{key}={mode}:{SUMS_TOS[1] if calibrated else SUMS_TOS[0]}:{options.packing if packed else 1}"
             for key, (mode, calibrated, packed) in MODES.items() if key in options.modes]
    lines, idle = run_workers(options, model, workers, [1, connections], modes, options.steps, options.probes)
    paths, packings, missing, decisions, kinds = figures.split_lines(lines)
    layers = options.layers
    packing = paths["full"]["packing"] if "full" in paths else None
    print(f"\n{name}: {model.name}, {workers} workers, {layers} of {model.layers} layers, {options.steps} steps a mode, {connections} "
          f"connections of sums, packing of full {packing} (the paper's {model.packing[workers]}); {idle:.0%} of the CPU idle"
          + (": VOID, less than 20 %" if idle < parts.LEAST_IDLE else ""))
    fits = figures.fit_links(kinds["probe"])
    for what, (alpha, beta, r2) in fits.items():
        print(f"  {what} by itself: {alpha:.2f} ms + {beta:.3f} of bytes / bandwidth, r2 {r2:.4f}"
              + ("" if r2 > figures.LEAST_R2 else ": REFUSED"))
    figures.check_links(fits)
    found = figures.medians(figures.steps_by_mode(kinds["mode"], paths, layers))
    figures.print_modes(found, paths, [mode for mode in MODES if mode in options.modes])
    for decision in decisions:
        print(f"  {decision}")
    print("  exposed by the critical path with all-to-alls cut, by packing: "
          + ", ".join(f"{packing}: {exposed:.0f} ms" for packing, exposed in packings.items()))
    under = figures.slowdowns(kinds["mode"], "fair")
    if under:
        print(f"  {len(under)} all-to-alls of fair under sums: median slowdown {median(under):.2f}, worst {max(under):.2f}")
    made = figures.figures_of(found, paths, figures.micro_overhead(kinds["micro"], layers))
    made["ratios"] = figures.ratios_of(found)
    if missing:
        print(f"  not built: {', '.join(missing)}")
    sys.stdout.flush()
    return {"figures": made, "idle": idle, "missing": missing, "connections": connections, "packing_of_full": packing}


def run_part(options, name):
    if name in TRAINERS:
        return trainers.run(options, TRAINERS[name])
    if name in SHAPED:
        return trainers.run_shaped(options, *SHAPED[name])
    return calibrate(options, name) if name == "calibration" else run_table(options, name)


def print_beside_paper(results):
    names = [name for name in results if "ratios" in results[name].get("figures", {})]
    if not names:
        return
    print("\nfair over the mode (full; LI-12 priority, LI-13 partition), beside the paper's over DeepSpeed")
    rows = [["", *names, "paper"]]
    for key, paper in PAPER.items():
        rows.append([key, *(results[name]["figures"]["ratios"][key] for name in names), paper])
    overheads = [results[name]["figures"].get("microop_overhead") for name in names]
    rows.append(["LI-14", *(None if overhead is None else f"{overhead:.1%}" for overhead in overheads), "micro-ops 1.7 %"])
    report.table(rows)


def conclude(options, results):
    counting = {name: result for name, result in results.items() if parts.counts(result)}
    found = {}
    for name, result in counting.items():
        if name in TABLES:
            model, workers = name.rsplit("_", 1)
            found[model, int(workers)] = result["figures"]
    print_beside_paper(counting)
    print()
    parts.print_not_counting(results)
    missing = sorted({mode for result in results.values() for mode in result.get("missing", [])})
    real = {name: result for name, result in counting.items() if name in TRAINERS or name in SHAPED}
    report.finish("training", {**figures.conclude(found), **trainers.conclude(real, SHAPED)},
                  {"not_built": missing, "parts": parts.details(results, "steps", "packing_of_full", "best", "exposed", "intervals", *SAME[:-1])})
    if len(counting) < len(results):
        sys.exit(1)


def main():
    parser = report.parser(__doc__)
    parts.add_arguments(parser, [*PARTS, *TRAINERS, *SHAPED], "training", PARTS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--connections", type=float, help="of sums, where an all-to-all has one; without: as calibrated")
    parser.add_argument("--packing", type=int, choices=(0, 1, 2, 4), default=0, help="of full; 0: as a job's controller chooses")
    parser.add_argument("--steps", type=int, default=3, help="in each mode")
    parser.add_argument("--stretch", type=float, help=f"how much slower than the paper's all is; without: by workers, {STRETCH}")
    parser.add_argument("--burst_kib", type=int, default=0, help=f"that pass a link at once; without: by workers, bytes {BURST}")
    parser.add_argument("--bytes", type=float, default=120, help="how many times fewer bytes than the paper's")
    parser.add_argument("--layers", type=int, default=3, help="of a model's 12 or 24")
    parser.add_argument("--rounds", type=int, default=9, help="of trainers: steps in each mode")
    parser.add_argument("--mbit", type=int, default=0, help="of trainers: bandwidth of each one's link, Mb/s; 0: loopback, or as "
                        "their part says")
    parser.add_argument("--trainer_modes", default="", help="of trainers, instead of all; the first is what others are compared with; "
                        "with granularity, and with replicas of experts: preempt,preempt@4,preempt@auto,preempt@4/2")
    parser.add_argument("--trainer_config", default="", help="of trainers: the folder of another config.json than the demo model's")
    parser.add_argument("--piece_kib", type=int, default=0, help="of trainers: of sums; 0: by the links, as jobs do")
    options = parser.parse_args()
    if not {"fair", "ar_last"} <= set(options.modes):
        parser.error("--modes: fair and ar_last are what others are compared with")
    if options.merge:
        return conclude(options, parts.kept(options, *SAME))
    if any(name not in TRAINERS for name in options.only) or options.mbit:
        enter_namespace()
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)  # for trainers on loopback
    if options.quick:
        options.steps = 1
        if options.only == PARTS:
            options.only = ["calibration", "txl_16", "gpt2_4"]
        options.rounds = min(options.rounds, 2)
    options.warm_up, options.probes = 0 if options.quick else 1, 3 if options.quick else 7
    conclude(options, parts.run(options, run_part, settings_of(options), MINUTES))


if __name__ == "__main__":
    main()
