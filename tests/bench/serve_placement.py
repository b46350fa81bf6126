"""Modes of expert placement on real workers, in seconds that a gRPC client sees: prefill and decode of the demo model by 4 or 8
workers of one core each, on shaped links.

Each worker has a network namespace and a link of 1 Gb/s, as a machine of its own; all is real but what this machine lacks the cores for:
experts are as if of 8 MiB (columns of zeros would change no output, so the demo model's narrow ones are computed, with its real
routing), and their products take the time that the placement's cost model assumes of a core: 8 MiB of weights at 10 GB/s once,
rows at 50 GFLOP/s (--expert_weights_us, --expert_row_us).  A copy of an expert comes at 1 GB/s, as from a disk.  Workers share this
machine's cores, so all these times are longer by workers / cores, and links as much slower: seconds here are that many of such machines.

Texts are this repository's own, in pieces that no other benchmark fits on; no prompt comes twice.  A batch is 2048 tokens: 256 of each of 8
prompts (`mixed`: all kinds of files; `skewed`: few different words, so that few experts get most rows).  Decode: 1, 8 and 64 sequences
at once.  The servers of all modes are up and take turns, batch by batch.  Figures are the sums of all batches' seconds over each other, so with
auto's trials; the table has medians of the ratios within a batch, too.  Spare slots are one a worker and layer, lina's four.  Servers
write down each step's result (SY_DUMP_STEP), of which p95_over_bound is made: a layer's time over the bound that replicas with such slots could reach.

Needs root (network namespaces).  Checked, before and after: all modes give the same tokens.
"""
import json
import os
import random
import re
import statistics
import sys
import tempfile
from pathlib import Path

import record_traces
import report
from emulated_cluster import Cluster, enter_namespace
from switchyard_engine import SwitchyardOnLinks

PROMPT, BATCH = 256, 8
MIB = 1 << 20
EXPERT_BYTES, NARROW_BYTES = 8 * MIB, 3 * 192 * 96 * 2
READ_RATE, FLOP_RATE, COPY_RATE, LINK_BITS = 10e9, 50e9, 1e9, 1e9
TARGETS = {"auto_over_static_prefill": 1.2, "auto_over_static_skewed": 1.5, "auto_worst": 0.99}
MOST = {"p95_over_bound": 1.10}
MODES = {
    "static": ["--placement=static"],
    "auto": ["--placement=auto", "--spare_slots=1"],
    "agreed": ["--placement=agreed", "--spare_slots=1"],
    "lina": ["--placement=lina", "--spare_slots=4"],
}


def slowdown(workers):
    """By how much time is longer where so many workers share this machine's cores."""
    return max(1, workers / len(os.sched_getaffinity(0)))


class ClusterServer(SwitchyardOnLinks):
    """Workers of emulated cores, in one mode.  Its server writes down the steps' results."""

    def __init__(self, cluster, args, mode, folder, port):
        slower = slowdown(args.workers)
        moves = "--placement=static" not in MODES[mode]
        # The server prices copies by the same rate.
        copies = [f"--expert_copy_bytes_per_second={COPY_RATE * NARROW_BYTES / EXPERT_BYTES / slower:.0f}"] if moves else []
        super().__init__(cluster, args.bin, report.ROOT / "deploy/demo-model", Path(folder) / mode.replace(" ", "_"), port,
                         server_flags=[f"--kv_cache_bytes={64 * MIB}", "--micro_batches=1", *copies, *MODES[mode]],
                         worker_flags=[f"--expert_weights_us={slower * EXPERT_BYTES / READ_RATE * 1e6:.1f}",
                                       f"--expert_row_us={slower * EXPERT_BYTES / FLOP_RATE * 1e6:.2f}", *copies])

        self._steps = self._folder / "steps"
        self._steps.mkdir()
        inside = len(cluster.inside(0))
        self._command[inside:inside] = ["env", f"SY_DUMP_STEP={self._steps}"]

    def layers_over_bound(self, row_seconds):
        """Of each layer of steps of many rows so far: the busiest worker's seconds in experts, waits for copies included, over
        what all rows in equal parts take."""
        ratios = []
        for path in self._steps.glob("*-result.txt"):
            ranks = re.findall(r"layers' rows \[(.*?)\] ms \[(.*?)\]", path.read_text())
            rows, ms = ([[float(x) for x in rank[part].split()] for rank in ranks] for part in (0, 1))
            for of_layer, seconds in zip(zip(*rows, strict=True), zip(*ms, strict=True), strict=True):
                if sum(of_layer) >= PROMPT * BATCH:  # half a batch, as each row has two experts
                    ratios.append(max(seconds) * 1e-3 / (sum(of_layer) / len(of_layer) * row_seconds))
        return ratios

    def _flags_of_worker(self, host):
        files = self._folder / f"experts{host}"
        files.mkdir()
        return [f"--expert_file_dir={files}"]

    def evenness(self):
        """Mean over busiest of workers' rows in steps with prompts, on average so far."""
        labels = 'phase="prefill"'
        return [sum(v for l, v in self._series(self._metrics_url, f"switchyard_moe_balancedness_ratio_{part}") if labels in l) for part in ("sum", "count")]

    def token_ids(self, texts):
        done = self._call("tokenize", "--input=-", "--json", text="".join(json.dumps({"text": text}) + "\n" for text in texts))
        if done.returncode != 0:
            raise RuntimeError(f"switchyard tokenize: {done.stdout}{done.stderr}")
        return [json.loads(line)["token_ids"] for line in done.stdout.splitlines()]

    def skew(self):
        """Rows of the most and the least popular expert of a layer, the mean over layers of their ratio, so far."""
        layers = [[int(expert["prefill_rows"]) for expert in layer["experts"]] for layer in self.ask("experts")["layers"]]
        return statistics.mean(max(rows) / max(1, min(rows)) for rows in layers)


def mixed_texts(count):
    """Pieces of the files that are held out, kinds in turn."""
    texts = [record_traces.pieces(kind, "held", count) for kind in record_traces.KINDS]
    order = [piece for group in zip(*texts) for piece in group] + [p for group in texts for p in group[min(map(len, texts)):]]
    return order


def skewed_prompt(seed, ids):
    """Few different tokens of a text, in random order."""
    source = random.Random(seed)
    few = source.sample(ids, 4)
    return [source.choice(few) for _ in range(PROMPT)]


def prefill(servers, batches, name):
    """{mode: [seconds to the last first token, by batch]}"""
    seconds = {mode: [] for mode in servers}
    for i, batch in enumerate(batches):
        order = list(servers)
        random.Random(i).shuffle(order)
        for mode in order:
            seconds[mode].append(servers[mode].bench(batch, 1)["ttft_seconds"]["max"])
        if i % 10 == 9 or i + 1 == len(batches):
            report.log(f"{name}: {i + 1} of {len(batches)} batches; static over " +
                       ", ".join(f"{mode} {over(seconds, 'static', mode):.3f}" for mode in servers))
    return seconds


def check_tokens(servers, prompts):
    answers = [[answer["token_ids"] for answer in server.generate(prompts, 8)] for server in servers.values()]
    if any(answer != answers[0] for answer in answers):
        sys.exit("serve_placement.py: modes give different tokens")


def decode(servers, prompts, tokens, rounds):
    """{mode: [seconds between two tokens, by round]}"""
    seconds = {mode: [] for mode in servers}
    for i in range(rounds):
        order = list(servers)
        random.Random(i).shuffle(order)
        for mode in order:
            seconds[mode].append(servers[mode].bench(prompts(i), tokens)["inter_token_seconds"]["mean"])
    return seconds


def over(seconds, base, mode):
    return statistics.median(a / b for a, b in zip(seconds[base], seconds[mode]))


def over_all(seconds, base, mode):
    return sum(seconds[base]) / sum(seconds[mode])


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--workers", type=int, default=8, help="one core each (8)")
    parser.add_argument("--batches", type=int, help="of 2048 tokens, of each kind of text (200; --quick: 12)")
    parser.add_argument("--modes", default=",".join(MODES), help="with static and auto (all)")
    args = parser.parse_args()
    args.batches = args.batches or (12 if args.quick else 200)
    rounds, tokens = (4, 32) if args.quick else (12, 48)
    load = report.load_average()
    enter_namespace()
    slower = slowdown(args.workers)
    modes = args.modes.split(",")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, Cluster(args.workers + 1, LINK_BITS / slower) as cluster:
        servers = {}
        try:
            for i, mode in enumerate(modes):
                servers[mode] = ClusterServer(cluster, args, mode, folder, 50100 + i)
                servers[mode].__enter__()
            first = servers[modes[0]]
            ids = [ids[:PROMPT] for ids in first.token_ids(mixed_texts(2 * args.batches * BATCH)) if len(ids) >= PROMPT]
            if len(ids) < args.batches * BATCH:
                report.log(f"the texts make {len(ids) // BATCH} batches, not {args.batches}")
            batches = [ids[i:i + BATCH] for i in range(0, min(len(ids), args.batches * BATCH) - BATCH + 1, BATCH)]
            check_tokens(servers, [prompt[3:35] for prompt in ids[:BATCH]])
            results = {"mixed": prefill(servers, batches, "mixed")}
            skew = {"mixed": first.skew()}
            over_bound = {mode: server.layers_over_bound(slower * EXPERT_BYTES / FLOP_RATE) for mode, server in servers.items()}
            p95 = {mode: statistics.quantiles(ratios, n=20)[-1] for mode, ratios in over_bound.items()}
            even = {mode: server.evenness() for mode, server in servers.items()}
            report.log("workers' rows, mean / busiest: " + ", ".join(f"{m} {t / max(1, c):.3f}" for m, (t, c) in even.items()))
            results["skewed"] = prefill(servers, [[skewed_prompt(i * BATCH + j, batch[j]) for j in range(BATCH)]
                                                  for i, batch in enumerate(batches)], "skewed")
            for at, count in enumerate((1, 8, 64)):
                # Another beginning each time, so that no prefix is reused.
                prompts = lambda i: [ids[j % len(ids)][5 + 40 * at + 3 * i:][:32] for j in range(count)]
                results[f"decode {count}"] = decode(servers, prompts, tokens, rounds)
                report.log(f"decode {count}: static over auto {over(results[f'decode {count}'], 'static', 'auto'):.3f}")
            check_tokens(servers, [prompt[4:36] for prompt in ids[:BATCH]])
            skew["all"] = first.skew()
            gained = {m: servers[m].metric("switchyard_placement_gained_seconds") for m in modes if m == "auto"}
        except BaseException:
            for mode, server in servers.items():
                report.log(f"--- {mode}\n" + server.log_text()[-1500:])
            raise
        finally:
            for server in servers.values():
                server.__exit__()
    print(f"{args.workers} workers, times {slower:g} as long; {len(batches)} batches of {PROMPT * BATCH} tokens; rows of the most popular expert "
          f"over the least: {skew['mixed']:.2f} (mixed), {skew['all']:.2f} (all); auto says that it gained {gained.get('auto', 0):.1f} s")
    rows = [["", *modes], ["mixed, workers' rows, mean / busiest", *(f"{total / max(1, count):.3f}" for total, count in even.values())],
            ["mixed, a layer over its bound, median", *(f"{statistics.median(over_bound[mode]):.3f}" for mode in modes)],
            ["p95", *(f"{p95[mode]:.3f}" for mode in modes)], ["layers of which", *(str(len(over_bound[mode])) for mode in modes)]]
    for name, seconds in results.items():
        rows.append([f"{name}, s", *(f"{statistics.median(seconds[mode]):.3f}" for mode in modes)])
        rows.append([f"{name}, static over it, all", *(f"{over_all(seconds, 'static', mode):.3f}" for mode in modes)])
        rows.append([f"{name}, static over it, median", *(f"{over(seconds, 'static', mode):.3f}" for mode in modes)])
    report.table(rows)
    figures = {"auto_over_static_prefill": over_all(results["mixed"], "static", "auto"),
               "auto_over_static_skewed": over_all(results["skewed"], "static", "auto"),
               "auto_worst": min(over_all(seconds, "static", "auto") for seconds in results.values())}
    figures["p95_over_bound"] = p95["auto"]
    report.finish("serve_placement", figures, {"targets": TARGETS, "at_most": MOST, "workers": args.workers, "batches": len(batches),
                                               "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
