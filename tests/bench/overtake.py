"""How long an all-to-all takes while a sum of gradients is under way: over connections that both share by turns, a
frame each, and over connections on which it overtakes the sum's frames (as in training).

Ranks are in network namespaces with links that are shaped both ways (emulated_cluster.py); the two kinds alternate, round by
round.  Needs root or user namespaces and iproute2.
"""
import collections
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report
from emulated_cluster import Cluster, enter_namespace


def run(args):
    """All lines of all ranks."""
    with tempfile.TemporaryDirectory() as folder, Cluster(args.ranks, args.mbit * 1e6) as cluster:
        flags = [f"--store={folder}", f"--world={args.ranks}", f"--rounds={args.rounds}", f"--rows_kib={args.rows_kib}",
                 f"--sum_mib={args.sum_mib}", f"--frame_kib={args.frame_kib}", f"--send_buffer_kib={args.send_buffer_kib}"]
        ranks = [cluster.start(rank, [str(Path(args.bin) / "overtake_bench"), *flags, f"--rank={rank}",
                                      f"--address={cluster.address(rank)}"], stdout=subprocess.PIPE, text=True)
                 for rank in range(args.ranks)]
        try:
            outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode != 0 for rank in ranks):
        sys.exit("overtake: a rank failed")
    return [json.loads(line) for output in outputs for line in output.splitlines()]


def main():
    parser = report.parser(__doc__)
    for name, default, text in (("ranks", 4, "one a namespace"), ("mbit", 1000, "bandwidth of each rank's link, Mb/s"),
                                ("rounds", 5, "sums over each kind of connections"), ("rows_kib", 1024, "that a rank sends in an all-to-all"),
                                ("sum_mib", 64, "of a sum"), ("frame_kib", 64, "of a frame at most, where all-to-alls overtake"),
                                ("send_buffer_kib", 64, "likewise: of a connection, in the kernel")):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    args = parser.parse_args()
    if args.quick:
        args.rounds = 1
    load = report.load_average()
    enter_namespace()
    took, sums, overtaken = collections.defaultdict(list), collections.defaultdict(list), 0
    for line in run(args):
        if "all_to_all_ms" in line:
            took[line["transport"], line["beside"]].append(line["all_to_all_ms"])
        elif "sum_ms" in line:
            sums[line["transport"]].append(line["sum_ms"])
        else:
            overtaken += line["overtaken"]
    wire = args.rows_kib * 1024 * 8 / args.mbit / 1e3
    print(f"{args.ranks} ranks, links of {args.mbit} Mb/s, all-to-alls of {args.rows_kib} KiB ({wire:.1f} ms of the wire) beside sums of "
          f"{args.sum_mib} MiB; ms")
    rows = [["all-to-all", "beside", "times", "median", "worst"]]
    for key in sorted(took, reverse=True):
        rows.append([key[0], key[1], str(len(took[key])), statistics.median(took[key]), max(took[key])])
    report.table(rows)
    for transport, times in sums.items():
        print(f"  a sum, {transport}, with the all-to-alls beside it: median {statistics.median(times):.0f} ms")
    print(f"  {overtaken} messages of all-to-alls and of meeting went past a sum's")
    figures = {f"{transport}_{what}": function(took[transport, "a sum"]) for transport in ("turns", "overtaking")
               for what, function in (("median_ms", statistics.median), ("worst_ms", max)) if took[transport, "a sum"]}
    report.finish("overtake", figures, {"ranks": args.ranks, "mbit": args.mbit, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
