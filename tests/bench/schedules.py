"""Programs of a MoE layer beside each other, in an emulation and by the simulator: 8 workers on 2 nodes and 16 on 4, each in a
network namespace with a shaped link, four to a node whose link to the others is shaped, too.

Collectives are the workers' own, with real bytes; the workers' executor runs the programs; experts' compute and copies are time
that passes (schedules/schedule_worker.cc).  A layer's forward and backward begin at a barrier and end when the last rank ends.
Programs take turns in changing order; a figure is a median, a ratio the median of a step's ratios; the best of some programs is
chosen by half of the steps and judged by the others (but of the simulator's choice all steps judge).

Part mpmoe_N has expert parallelism: FastMoE (whole rows, both gradients in one op), FasterMoE (chunks cut by peers), MPMoE in 2, 4, 8 chunks and with rows restored as S1 to S4, communication : compute of forward and backward together 1 : 1 and 54 : 46.
Part selector_N has 24 shapes of a layer: meshes of shards and copies, tokens, compute; of all programs that the selector (scheduler/simulator/program_selector.h) knows for a mesh, its choice beside the best.
Part parm_N has DeepSpeed-MoE's collectives, Parm's S1 and S2 for N_MP, N_ESP of 2 and 4, and PPMoE's slicing among 2 and 4 ranks.

No table counts without an alpha-beta fit of its links with r2 > 0.99, nor with less than 20 % of the CPU idle.  The simulator is
given that alpha, the shaped bandwidths, and what compute and copies take; its error is of forward and backward together, the worst of all programs.
Needs root or user namespaces and iproute2.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

import parts
import report
import training_figures as figures
import training_models as models
from emulated_cluster import Cluster, Nodes, TrafficClass, enter_namespace
from training import BURST, STRETCH, real_time

SIZES = (8, 16)
PARTS = [*(f"mpmoe_{n}" for n in SIZES), *(f"parm_{n}" for n in SIZES), "selector_8"]
TARGETS = {"of_ideal": 0.85, "of_ideal_reused": 0.8, "mpmoe_over_fastmoe": 1.45, "mpmoe_over_fastermoe": 1.12, "parm_worst": 1}
AT_MOST = {"parm_cell_error": 0.15, "pm_regret": 0.05, "simulator_error": 0.1, "selector_regret": 1.02, "selector_regret_worst": 1.05}
ALL = TrafficClass(0x20, 1)  # so that acknowledgements do not wait behind rows
BYTES = 120  # times fewer than training_models.py's
ROW_BYTES, HIDDEN_OVER_ROW = 256, 4
BACKWARD = 2  # of forward's products
WITHOUT_TENSOR_CORES = 1 / (1 - 0.51)  # times as long experts take: MP-8, mean of its two models
RATIOS = {"1:1": 1, "54:46": 46 / 54}  # compute over communication
STRATEGIES = ("S1", "S2", "S3", "S4")
MESHES = [(2, 2), (2, 4), (4, 2), (4, 4)]  # N_MP, N_ESP
CAPACITY = 1.2  # of Parm's rows
SELECTOR_MESHES = [(1, 1), (1, 4), (2, 2), (4, 4)]  # N_ESP, N_MP
SELECTOR_ROWS = ((1 / 2, 1), (1 / 4, 2))  # tokens, of mpmoe's (half, as parm's), and rows a token
SELECTOR_COMPUTE = (0.25, 1, 3)  # experts' forward over two all-to-alls of one rank's rows, by bytes
EVEN, ODD, ALL_STEPS = (0,), (1,), (0, 1)
MINUTES = 38


def scale_of(workers):
    return models.Scale(BYTES, STRETCH[workers], 1)


def shape_flags(workers, tokens, rows_per_token, experts_ms):
    scale = scale_of(workers)
    return [f"--tokens={tokens}", f"--row_bytes={ROW_BYTES}", f"--rows_per_token={rows_per_token}", f"--hidden_over_row={HIDDEN_OVER_ROW}",
            f"--experts_ms={experts_ms:.4f}", f"--copy_bytes_per_s={scale.link(12e9):.0f}",
            f"--rank_bytes_per_s={scale.link(models.GPU_BYTES_PER_S):.0f}", f"--node_bytes_per_s={scale.link(models.NODE_BYTES_PER_S):.0f}",
            f"--node_size={models.GPUS_PER_NODE}"]


def run_workers(options, workers, programs, shape):
    scale = scale_of(workers)
    nodes = Nodes(models.GPUS_PER_NODE, scale.link(models.NODE_BYTES_PER_S) * 8)
    with tempfile.TemporaryDirectory() as directory, \
         Cluster(workers, scale.link(models.GPU_BYTES_PER_S) * 8, BURST[workers], nodes, [ALL]) as cluster:
        output, meeting = Path(directory) / "run", Path(directory) / "meeting"
        meeting.mkdir()
        addresses = ",".join(cluster.address(rank) for rank in range(workers))
        priority = real_time()
        idle = cluster.run(lambda rank: [
            *priority, str(Path(options.bin) / "schedule_worker"), f"--rank={rank}", f"--addresses={addresses}", f"--output={output}",
            f"--meeting={meeting}", f"--programs={','.join(programs)}", f"--steps={options.steps}", f"--probes={options.probes}", *shape])
        return [[json.loads(line) for line in Path(f"{output}.{rank}").read_text().splitlines()] for rank in range(workers)], idle


def simulated(options, workers, programs, shape, latency_s=0.0):
    """{program: line of simulate_bench}"""
    done = subprocess.run([str(Path(options.bin) / "simulate_bench"), f"--ranks={workers}", f"--programs={','.join(programs)}",
                           f"--latency_s={latency_s:.9f}", *shape], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return {line["program"]: line for line in map(json.loads, done.stdout.splitlines())}


class Measured:
    """What a cluster gave for some programs, and what the simulator says of them."""

    def __init__(self, options, workers, programs, shape):
        self.workers, self.shape, self.options = workers, shape, options
        lines, self.idle = run_workers(options, workers, programs, shape)
        probes = list(zip(*([line for line in of_rank if "probe" in line] for of_rank in lines)))
        steps = list(zip(*([line for line in of_rank if "program" in line] for of_rank in lines)))
        self.took = {}  # {program: {step: {pass: ms}}}
        for of_ranks in steps:
            first = of_ranks[0]
            self.took.setdefault(first["program"], {}).setdefault(first["step"], {})[first["pass"]] = figures.milliseconds(of_ranks)
        ideal = simulated(options, workers, ["ep:1"], shape)["ep:1"]["dispatch_ms"]
        most = max(of_ranks[0]["bytes"] for of_ranks in probes)
        by_size = {}
        for of_ranks in probes:
            by_size.setdefault(of_ranks[0]["bytes"], []).append(figures.milliseconds(of_ranks))
        self.alpha, self.beta, r2 = figures.fit([(ideal * size / most, median(took)) for size, took in by_size.items()])
        self.dispatch = median(by_size[most])  # of all rows, by itself
        print(f"  an all-to-all by itself: {self.alpha:.2f} ms + {self.beta:.3f} of bytes / bandwidth ({ideal:.1f} ms), r2 {r2:.4f}; "
              f"{self.idle:.0%} of the CPU idle" + (": VOID" if self.idle < parts.LEAST_IDLE else ""))
        if not r2 > figures.LEAST_R2:
            raise figures.Refused(f"the alpha-beta fit has r2 {r2:.4f}, must be above {figures.LEAST_R2}")
        self.latency = max(0.0, self.alpha) * 1e-3 / (workers - 1)
        self.priced = simulated(options, workers, programs, shape, self.latency)
        self.by_bytes = simulated(options, workers, programs, shape)

    def ms(self, program, which=("forward", "backward"), steps=ALL_STEPS):
        return median(sum(took[each] for each in which) for step, took in self.took[program].items() if step % 2 in steps)

    def over(self, slower, faster, steps=ALL_STEPS):
        """Median of the steps' ratios."""
        return median(sum(self.took[slower][step].values()) / sum(self.took[faster][step].values())
                      for step in self.took[slower] if step % 2 in steps)

    def best(self, programs):
        """By steps of even numbers; the others judge it."""
        return min(programs, key=lambda program: self.ms(program, steps=EVEN))

    def simulated_ms(self, program, source=None):
        line = (source or self.priced)[program]
        return line["forward_ms"] + line["backward_ms"]

    def error(self, program):
        return self.simulated_ms(program) / self.ms(program) - 1


def faster_moe(workers):
    """Its knob: blocks of four peers, or of two.  All dispatches first, on one queue of collectives."""
    return [f"ep:{workers // size}:first:peers:joint:queue" for size in (4, 2)]


def beside_faster_moe(workers):
    """The same without the queue, as sockets have it, where all dispatches share the links; and in MPMoE's order, one dispatch at a time."""
    return [f"ep:{workers // size}:{order}:peers:joint" for size in (4, 2) for order in ("first", "turn")]


def as_published(options, workers, tokens, experts, latency_s, best):
    """By the simulator: FastMoE's time, and FasterMoE's with its better blocks, if their experts had no tensor cores, over that of `best`, whose experts have."""
    slow = simulated(options, workers, ["ep:1:joint", *faster_moe(workers)], shape_flags(workers, tokens, 1, experts * WITHOUT_TENSOR_CORES), latency_s)
    own = simulated(options, workers, [best], shape_flags(workers, tokens, 1, experts), latency_s)[best]
    ms = lambda line: line["forward_ms"] + line["backward_ms"]
    return ms(slow["ep:1:joint"]) / ms(own), min(ms(slow[program]) for program in faster_moe(workers)) / ms(own)


def run_mpmoe(options, workers):
    tokens = round(models.MODELS[0].rows_bytes() / BYTES / ROW_BYTES)
    found = {"of_ideal": [], "of_ideal_reused": [], "over_fastmoe": [], "over_fastermoe": [], "regret": [], "error": []}
    idle = []
    for ratio, compute_over in RATIOS.items():
        a2a = simulated(options, workers, ["ep:1"], shape_flags(workers, tokens, 1, 1))["ep:1"]["dispatch_ms"]
        experts = 4 * a2a * compute_over / (1 + BACKWARD)
        shape = shape_flags(workers, tokens, 1, experts)
        chunks = [f"ep:{n}" for n in (2, 4, 8)]
        first = [f"ep:{n}:first" for n in (4, 8)]
        reused = [f"ep:{n}:{strategy}" for n in (4, 8) for strategy in STRATEGIES]
        programs = ["ep:1:joint", "ep:1", *faster_moe(workers), *beside_faster_moe(workers), *chunks, "ep:8:joint", *first, *reused]
        print(f"\nmpmoe, {workers} workers, communication : compute {ratio}, experts' forward {experts:.1f} ms, {options.steps} steps", flush=True)
        at = Measured(options, workers, programs, shape)
        idle.append(at.idle)
        rows = [["program", "forward ms", "backward ms", "FastMoE over it", "simulated ms", "off", "on ideal links, FastMoE over it"]]
        for program in programs:
            rows.append([program, at.ms(program, ["forward"]), at.ms(program, ["backward"]), at.over("ep:1:joint", program),
                         at.simulated_ms(program), f"{at.error(program):+.1%}",
                         at.simulated_ms("ep:1:joint", at.by_bytes) / at.simulated_ms(program, at.by_bytes)])
            found["error"].append(abs(at.error(program)))
        report.table(rows)
        # Of each pass, by an all-to-all as it takes by itself.
        ideal = max(2 * at.dispatch, experts) + max(2 * at.dispatch, BACKWARD * experts)
        best, best_reused, best_faster = at.best([*chunks, *first]), at.best(reused), at.best(faster_moe(workers))
        found["of_ideal"].append(ideal / at.ms(best, steps=ODD))
        found["of_ideal_reused"].append(ideal / at.ms(best_reused, steps=ODD))
        # What the simulator would have chosen, with all rows kept and with rows restored.
        for choice in (chunks, reused):
            found["regret"].append(at.ms(min(choice, key=at.simulated_ms)) / min(map(at.ms, choice)) - 1)
        found["over_fastmoe"].append(at.over("ep:1:joint", best, ODD))
        found["over_fastermoe"].append(at.over(best_faster, best, ODD))
        print(f"  best {best}: {found['of_ideal'][-1]:.3f} of max(communication, compute) of each pass; with rows restored {best_reused} "
              f"{found['of_ideal_reused'][-1]:.3f}; the simulator's choices {found['regret'][-2]:.1%} and {found['regret'][-1]:.1%} behind the best; "
              f"over FastMoE {found['over_fastmoe'][-1]:.2f}, over FasterMoE ({best_faster}) {found['over_fastermoe'][-1]:.2f}")
        slow = as_published(options, workers, tokens, experts, at.latency, best)
        print(f"  as published (simulated; FastMoE's and FasterMoE's experts {WITHOUT_TENSOR_CORES:.2f} times as long, MP-8): "
              f"over FastMoE {slow[0]:.2f}, over FasterMoE {slow[1]:.2f}", flush=True)
    return {"figures": found, "idle": min(idle)}


def run_parm(options, workers):
    # Half of mpmoe's: no message is longer than what a worker may send before its receiver has asked for it.
    tokens = round(models.MODELS[0].rows_bytes() / BYTES / ROW_BYTES / 2)
    shape = shape_flags(workers, tokens, CAPACITY, 1e-3)
    programs = [f"parm:{kind}@{shards}x{copies}" for copies, shards in MESHES for kind in ("baseline", "s1", "s2", f"s2:{workers}")]
    sliced = [f"sliced:{kind}@1x{copies}" for copies in (2, 4) for kind in ("sum", "gather")]
    programs += sliced
    print(f"\nparm, {workers} workers, no compute, {CAPACITY} rows a token, {options.steps} steps", flush=True)
    at = Measured(options, workers, programs, shape)
    found = {"cell": [], "worst": [], "saa_over_aas": [], "error": []}
    rows = [["N_MP N_ESP", "baseline ms", "S1", "by bytes", "S2", "by bytes", "AAS over SAA", "simulated off, worst"]]
    for copies, shards in MESHES:
        mesh = f"@{shards}x{copies}"
        baseline, s1, aas, saa = (f"parm:{kind}{mesh}" for kind in ("baseline", "s1", "s2", f"s2:{workers}"))
        bytes_ms = lambda program: at.simulated_ms(program, at.by_bytes)
        row = [f"{copies} {shards}", at.ms(baseline)]
        for program in (s1, aas):
            measured, counted = at.over(baseline, program), bytes_ms(baseline) / bytes_ms(program)
            row += [measured, counted]
            found["cell"].append(abs(measured / counted - 1))
            found["worst"].append(measured)
        errors = [at.error(program) for program in (baseline, s1, aas, saa)]
        found["saa_over_aas"].append(at.over(aas, saa))
        found["error"] += map(abs, errors)
        rows.append([*row, at.over(aas, saa), f"{max(errors, key=abs):+.1%}"])
    report.table(rows)
    print("  PPMoE's slicing, ms and simulated: "
          + ", ".join(f"{program} {at.ms(program):.0f}, {at.simulated_ms(program):.0f} ({at.error(program):+.1%})" for program in sliced), flush=True)
    found["error"] += [abs(at.error(program)) for program in sliced]
    return {"figures": found, "idle": at.idle}


def selected(options, workers, mesh, shape, latency_s=0.0):
    """Names of the selector's programs, its choice first."""
    done = subprocess.run([str(Path(options.bin) / "simulate_bench"), f"--ranks={workers}", f"--select={mesh[0]}x{mesh[1]}",
                           f"--latency_s={latency_s:.9f}", *shape], capture_output=True, text=True, check=True)
    return [json.loads(line)["program"] for line in done.stdout.splitlines()]


def run_selector(options, workers):
    most = round(models.MODELS[0].rows_bytes() / BYTES / ROW_BYTES)
    found, idle = {"selector": [], "error": []}, []
    rows = [["N_ESP N_MP", "tokens x rows", "experts ms", "chosen", "ms", "best", "ms", "chosen over best", "off"]]
    print(f"\nselector, {workers} workers, {options.steps} steps", flush=True)
    for mesh in SELECTOR_MESHES:
        for share, per_token in SELECTOR_ROWS:
            for compute in SELECTOR_COMPUTE:
                tokens = round(most * share)
                a2a = simulated(options, workers, ["ep:1"], shape_flags(workers, tokens, per_token, 1))["ep:1"]["dispatch_ms"]
                shape = shape_flags(workers, tokens, per_token, 2 * a2a * compute)
                at = Measured(options, workers, sorted(selected(options, workers, mesh, shape)), shape)
                chosen = selected(options, workers, mesh, shape, at.latency)[0]
                best = at.best(at.took)
                regret = 1.0 if best == chosen else at.over(chosen, best, ODD)
                found["selector"].append(regret)
                found["error"] += [abs(at.error(program)) for program in at.took]
                idle.append(at.idle)
                rows.append([f"{mesh[0]} {mesh[1]}", f"{tokens} x {per_token}", 2 * a2a * compute, chosen, at.ms(chosen), best, at.ms(best), regret, f"{at.error(chosen):+.1%}"])
    report.table(rows)
    return {"figures": found, "idle": min(idle)}


def run_part(options, name):
    kind, workers = name.split("_")
    return {"mpmoe": run_mpmoe, "parm": run_parm, "selector": run_selector}[kind](options, int(workers))


def conclude(options, results):
    counting = [result["figures"] for result in results.values() if parts.counts(result)]
    lists = lambda key: [value for found in counting for value in found.get(key, [])]
    made = {}
    for key, source, way in (("of_ideal", "of_ideal", min), ("of_ideal_reused", "of_ideal_reused", min), ("mpmoe_over_fastmoe", "over_fastmoe", mean),
                             ("mpmoe_over_fastermoe", "over_fastermoe", mean), ("parm_cell_error", "cell", max), ("parm_worst", "worst", min),
                             ("saa_over_aas", "saa_over_aas", mean), ("pm_regret", "regret", max), ("simulator_error", "error", max),
                             ("selector_regret", "selector", mean), ("selector_regret_worst", "selector", max)):
        if lists(source):
            made[key] = way(lists(source))
    print()
    parts.print_not_counting(results)
    if errors := lists("error"):
        print(f"simulator beside {len(errors)} programs: median {median(errors):.1%} off, {sum(error <= 0.1 for error in errors)} within 10 %")
    for key, value in made.items():
        if key in TARGETS or key in AT_MOST:
            met = value >= TARGETS[key] if key in TARGETS else value <= AT_MOST[key]
            print(f"{key} {value:.3f} of {TARGETS.get(key, AT_MOST.get(key))}: {'met' if met else 'MISSED'}")
    report.finish("schedules", made, {"programs": len(lists("error")), "parts": parts.details(results, "steps", "quick")})
    if len(counting) < len(results):
        sys.exit(1)


def main():
    parser = report.parser(__doc__)
    parts.add_arguments(parser, PARTS, "schedules")
    parser.add_argument("--steps", type=int, default=0, help="of each program; 0: 9, with --quick 5")
    options = parser.parse_args()
    if options.merge:
        return conclude(options, parts.kept(options, "steps", "quick", "processor"))
    enter_namespace()
    options.steps = options.steps or (5 if options.quick else 9)
    if options.steps < 2:
        parser.error("--steps: 2 at least, one to choose by and one to judge by")
    options.probes = 5
    conclude(options, parts.run(options, run_part, {"steps": options.steps, "quick": options.quick}, MINUTES))


if __name__ == "__main__":
    main()
