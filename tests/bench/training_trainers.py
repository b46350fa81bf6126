"""Modes of communication of real trainers beside each other: parts trainers_N of training.py, which choose the default mode.

Every rank is a trainer (training_rank_bench) on one thread: the demo model with drawn weights and tokens.  Its ranks are
processes on loopback; with --mbit each is in a network namespace with a shaped link of its own.  Modes take turns step by
step, another one first in each round, and train the same parameters; a step's figure is its slowest rank's, a mode's the
median over rounds, a ratio the median of the rounds' ratios.
"""
import collections
import contextlib
import json
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
SECONDS = 900  # within which a part ends


class _Loopback:
    """As a Cluster: programs of this machine's own network."""

    def address(self, _):
        return "127.0.0.1"

    def start(self, _, command, **popen):
        return subprocess.Popen(command, **popen)


def modes_of(options):
    return options.trainer_modes.split(",") if options.trainer_modes else MODES


def _outputs(options, ranks, store):
    cluster = Cluster(ranks, options.mbit * 1e6) if options.mbit else contextlib.nullcontext(_Loopback())
    with cluster as hosts:
        started = [hosts.start(rank, [
            str(Path(options.bin) / "training_rank_bench"), f"--config={options.trainer_config or report.ROOT / 'deploy/demo-model'}", f"--store={store}",
            f"--world={ranks}", f"--modes={','.join(modes_of(options))}", f"--rounds={options.rounds}", f"--sequences={SEQUENCES}",
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
        steps[lines[0]["mode"]].append({name: max(line[name] for line in lines) for name in ("chunks", *(name for name, _ in COLUMNS))})
    return steps


def run(options, ranks):
    """A part (parts.py), whose figures are by how much the default mode's step takes longer than each other's."""
    load = report.load_average()
    with tempfile.TemporaryDirectory() as store:
        steps = steps_of(_outputs(options, ranks, store))
    modes = modes_of(options)
    default = modes[0]
    ratios = {mode: statistics.median(base["total"] / step["total"] for base, step in zip(steps[default], steps[mode]))
              for mode in modes}
    print(f"\ntrainers_{ranks}: {ranks} trainers of {Path(options.trainer_config).name or 'the demo model'}, "
          + (f"links of {options.mbit} Mb/s" if options.mbit else "loopback")
          + f", {SEQUENCES} x {LENGTH} tokens each, pieces of {options.piece_kib} KiB, {options.rounds} rounds, load {load} before; ms")
    report.table([["mode", *(title for _, title in COLUMNS), "chunks", f"{default} / it"],
                  *([mode, *(1e3 * statistics.median(step[name] for step in steps[mode]) for name, _ in COLUMNS),
                     steps[mode][-1]["chunks"], ratios[mode]] for mode in modes)])
    return {"figures": {f"{default}_over_{mode}": round(ratio, 3) for mode, ratio in ratios.items() if mode != default}}
