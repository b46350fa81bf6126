"""Modes of communication of real trainers beside each other: parts trainers_N of training.py, which choose the default mode,
and trainers_N_P, on links of which P % of ar_last's step is exposed communication.

Every rank is a trainer (training_rank_bench) on one thread: the demo model with drawn weights and tokens.  Its ranks are
processes on loopback; with --mbit, and in parts trainers_N_P, each is in a network namespace with a shaped link of its own.
Modes take turns step by step, another one first in each round, and train the same parameters (those with replicas of
experts, MODE/2, others); a step's figure is its slowest rank's, a mode's the median over rounds, a ratio the median of the
rounds' ratios, with the interval in which that median is with 95 % (of one launch; of fewer than 6 rounds it is their range).
full is here pipelining with so many replicas; its trials are not run.

A link is found by halving: so fast that all-to-alls, with packing rows and waiting for slower ranks, and the sums behind
backward are P % of ar_last's step, to two points there and to five in the run that counts.
"""
import collections
import contextlib
import json
import math
import statistics
import subprocess
import tempfile
from pathlib import Path

import report
from emulated_cluster import Cluster

MODES = ["ar_last", "fair", "fixed", "priority", "priority_ticketed", "partition", "pipelining", "preempt"]
COLUMNS = [("total", "step"), ("forward", "forward"), ("backward", "backward"), ("all_to_all", "all-to-all"),
           ("backward_all_to_all", "its backward"), ("all_reduce", "sums exposed"), ("optimizer", "optimizer")]
AGREED = ("mode", "chunks", "loss", "gradient_norm")  # of a step: each rank has them from its own sums
SEQUENCES, LENGTH = 4, 256  # of a rank
EXPOSED = (20, 40, 60)  # % of ar_last's step
CHOSEN = "preempt@auto"  # what jobs do whose spec says nothing
SHAPED_MODES = [*MODES, CHOSEN]
PACKED_MODES = ["full", CHOSEN]  # with 2, 4, … replicas of each expert
MBITS = (10, 20000)  # of links, between which is searched
PROBES, PROBE_ROUNDS, CLOSE, FAR = 8, 5, 0.02, 0.05
SECONDS = 900  # within which a part ends


class _Loopback:
    """As a Cluster: programs of one network."""

    def address(self, _):
        return "127.0.0.1"

    def start(self, _, command, **popen):
        return subprocess.Popen(command, **popen)


def modes_of(options, modes=MODES):
    return options.trainer_modes.split(",") if options.trainer_modes else modes


def shaped_modes(ranks):
    packings = [packing for packing in (2, 4, 8) if packing <= ranks]
    return [*SHAPED_MODES, *(f"{mode}/{packing}" for packing in packings for mode in PACKED_MODES)]


def _outputs(options, ranks, store, modes, rounds, mbit):
    cluster = Cluster(ranks, mbit * 1e6) if mbit else contextlib.nullcontext(_Loopback())
    with cluster as hosts:
        started = [hosts.start(rank, [
            str(Path(options.bin) / "training_rank_bench"), f"--config={options.trainer_config or report.ROOT / 'deploy/demo-model'}", f"--store={store}",
            f"--world={ranks}", f"--modes={','.join(modes)}", f"--rounds={rounds}", f"--sequences={SEQUENCES}",
            f"--length={LENGTH}", f"--piece_bytes={options.piece_kib << 10}", f"--rank={rank}",
            f"--address={hosts.address(rank)}"], stdout=subprocess.PIPE, text=True) for rank in range(ranks)]
        try:
            outputs = [rank.communicate(timeout=SECONDS)[0] for rank in started]
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{ranks} trainers were not done in {SECONDS} s") from error
        finally:
            for rank in started:
                rank.kill()
                rank.wait()
    if any(rank.returncode != 0 for rank in started):
        raise RuntimeError(f"trainers ended with {[rank.returncode for rank in started]}")
    return outputs


def steps_of(outputs):
    """{mode: [a round: each column's largest of all ranks]}, from what ranks wrote.  RuntimeError where ranks differ."""
    steps = collections.defaultdict(list)
    for number, lines in enumerate(zip(*([json.loads(line) for line in output.splitlines()] for output in outputs), strict=True)):
        for rank, line in enumerate(lines):
            for key in AGREED:
                if line[key] != lines[0][key]:
                    raise RuntimeError(f"step {number}: {key} is {lines[0][key]} on rank 0 and {line[key]} on rank {rank}")
        step = {name: max(line[name] for line in lines) for name in ("chunks", *(name for name, _ in COLUMNS))}
        step["exposed"] = statistics.mean((line["all_to_all"] + line["all_reduce"]) / line["total"] for line in lines)
        steps[lines[0]["mode"]].append(step)
    return steps


def run(options, ranks):
    """A part (parts.py), whose figures are by how much the first mode's step takes longer than each other's."""
    modes = modes_of(options)
    load = report.load_average()
    steps = _steps(options, ranks, modes, options.rounds, options.mbit)
    ratios = _print(options, f"trainers_{ranks}", ranks, modes, steps, f"links of {options.mbit} Mb/s" if options.mbit else "loopback", load)
    return {"figures": {f"{modes[0]}_over_{mode}": round(ratio, 3) for mode, ratio in ratios.items() if mode != modes[0]}}


def _steps(options, ranks, modes, rounds, mbit):
    with tempfile.TemporaryDirectory() as store:
        return steps_of(_outputs(options, ranks, store, modes, rounds, mbit))


def ratio_of(one, other):
    """The median of the rounds' ratios of steps, and the interval in which it is with 95 %, by order statistics."""
    ratios = sorted(a["total"] / b["total"] for a, b in zip(one, other, strict=True))
    count, outside, below = len(ratios), 0.0, -1
    while (outside + math.comb(count, below + 1) / 2**count) * 2 <= 0.05:
        below += 1
        outside += math.comb(count, below) / 2**count
    low = max(0, below)
    return statistics.median(ratios), ratios[low], ratios[count - 1 - low]


def _print(options, name, ranks, modes, steps, links, load):
    base = modes[0]
    ratios = {mode: ratio_of(steps[base], steps[mode]) for mode in modes}
    print(f"\n{name}: {ranks} trainers of {Path(options.trainer_config).name or 'the demo model'}, {links}, {SEQUENCES} x {LENGTH} tokens each, "
          f"pieces {f'of {options.piece_kib} KiB' if options.piece_kib else 'by the links'}, {len(steps[base])} rounds, load {load} before; ms")
    report.table([["mode", *(title for _, title in COLUMNS), "chunks", f"{base} / it", "95 % from", "to"],
                  *([mode, *(1e3 * statistics.median(step[column] for step in steps[mode]) for column, _ in COLUMNS),
                     steps[mode][-1]["chunks"], *ratios[mode]] for mode in modes)])
    return {mode: ratio for mode, (ratio, _, _) in ratios.items()}


def exposed(steps):
    """Which part of a step is communication that nothing hides, on average over ranks."""
    return statistics.median(step["exposed"] for step in steps)


def find_link(options, ranks, percent):
    """Mb/s of a link on which so much of ar_last's step is exposed.  RuntimeError where there is none."""
    low, high = MBITS
    for _ in range(PROBES):
        mbit = math.sqrt(low * high)
        share = exposed(_steps(options, ranks, ["ar_last"], PROBE_ROUNDS, mbit)["ar_last"])
        report.log(f"links of {mbit:.0f} Mb/s: {share:.1%} of ar_last's step are exposed")
        if abs(share - percent / 100) <= CLOSE:
            return mbit
        low, high = (mbit, high) if share > percent / 100 else (low, mbit)
    raise RuntimeError(f"no link between {MBITS[0]} and {MBITS[1]} Mb/s exposes {percent} % of ar_last's step of {ranks} trainers: "
                       f"{share:.1%} at {mbit:.0f}")


def run_shaped(options, ranks, percent):
    """A part, whose figures are ar_last's and fair's step over the chosen mode's, and the chosen one's over the best."""
    load = report.load_average()
    mbit = options.mbit or find_link(options, ranks, percent)
    modes = modes_of(options, shaped_modes(ranks))
    modes += [mode for mode in ("ar_last", "fair", CHOSEN) if mode not in modes]
    rounds = max(20, options.rounds) if not options.quick else 2
    steps = _steps(options, ranks, modes, rounds, mbit)
    _print(options, f"trainers_{ranks}_{percent}", ranks, modes, steps, f"links of {mbit:.0f} Mb/s", load)
    behind = {mode: ratio_of(steps[CHOSEN], steps[mode]) for mode in modes}
    best = max(behind, key=lambda mode: behind[mode][0])
    gain, over_fair = ratio_of(steps["ar_last"], steps[CHOSEN]), ratio_of(steps["fair"], steps[CHOSEN])
    share = exposed(steps["ar_last"])
    print(f"  exposed of ar_last {share:.1%}; {CHOSEN}, which is the default, over the best, {best}: {behind[best][0]:.3f} "
          f"({behind[best][1]:.3f} to {behind[best][2]:.3f}); ar_last over it: {gain[0]:.3f} ({gain[1]:.3f} to {gain[2]:.3f}); fair over it: {over_fair[0]:.3f}", flush=True)
    if not options.mbit and not options.quick and abs(share - percent / 100) > FAR:
        raise RuntimeError(f"{share:.1%} of ar_last's step are exposed on the link that was found, not {percent} %")
    return {"figures": {"chosen_over_best": round(behind[best][0], 3), "real_gain": round(gain[0], 3), "real_gain_over_fair": round(over_fair[0], 3)},
            "best": best, "mbit": round(mbit), "exposed": round(share, 3),
            "intervals": {"chosen_over_best": behind[best][1:], "real_gain": gain[1:]}}


def conclude(results, shaped):
    """Figures of targets, from results of parts by name; shaped: {name: (ranks, percent)}."""
    made = {}
    for name, result in results.items():
        figures = result["figures"]
        if name not in shaped:
            made |= {f"{key}_{name.split('_')[1]}": value for key, value in figures.items()}
            continue
        made["chosen_over_best"] = max(made.get("chosen_over_best", 0), figures["chosen_over_best"])
        for figure in ("real_gain", "real_gain_over_fair"):
            key = f"{figure}_{shaped[name][1]}"
            made[key] = min(made.get(key, math.inf), figures[figure])
    return made
