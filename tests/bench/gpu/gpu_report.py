#!/usr/bin/env python3
"""Joins the lines of gpu_bench and peers.py: tables, then one line of JSON.

usage: gpu_report.py FILE...    lines of JSON, also of several files.  What was not measured is null, never a guess.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import finish, table  # noqa: E402

PEERS = ("torch", "vllm")
LARGE = 4096  # tokens from which expert_gemm_rate counts


def read(files):
    lines = []
    for file in files:
        for number, text in enumerate(Path(file).read_text().splitlines(), 1):
            try:
                if text.strip():
                    lines.append(json.loads(text))
            except ValueError:  # cut off by the end of its program
                lines.append({"kind": "wrong", "what": f"{Path(file).name}:{number}", "reason": f"no JSON: {text[:80]}"})
    return lines


def ratio(a, b):
    return None if a is None or b is None or b == 0 else a / b


def cell(value, scale=1.0, digits=1):
    return "-" if value is None else f"{value * scale:.{digits}f}"


class Report:
    def __init__(self, lines):
        self.of = {}
        for line in lines:
            self.of.setdefault(line["kind"], []).append(line)
        self.tiny = any(line.get("tiny") for line in lines)
        self.copy_rate = self.ceiling("copy", "bytes")  # bytes read and written a second
        self.gemm_rate = self.ceiling("gemm", "flops")

    def all(self, kind):
        return self.of.get(kind, [])

    def ceiling(self, kind, amount):
        """The best of what was measured, ours or PyTorch's."""
        return max((rate for line in self.all(kind) if (rate := ratio(line.get(amount), line.get("seconds"))) is not None), default=None)

    def first(self, kind):
        return (self.all(kind) or [{}])[0]

    def rates(self, line, seconds="seconds"):
        """[µs, GB/s, of copy, TFLOP/s, of gemm] as numbers or None."""
        time = line.get(seconds)
        read, work = ratio(line.get("bytes"), time), ratio(line.get("flops") or None, time)
        return time, read, ratio(read, self.copy_rate), work, ratio(work, self.gemm_rate)

    def row(self, names, line, seconds="seconds"):
        time, read, of_copy, work, of_gemm = self.rates(line, seconds)
        return names + [cell(time, 1e6), cell(read, 1e-9), cell(of_copy, 1, 3), cell(work, 1e-12), cell(of_gemm, 1, 3)]

    # --- tables
    def ops(self):
        rows = [["op", "shape", "us", "GB/s", "of copy", "TFLOP/s", "of GEMM", "peer us", "peer/ours", "peer"]]
        for kind, shape in (("copy", "512 MiB"), ("gemm", f"{self.first('gemm').get('side')}^3")):
            rows += [self.row([kind, shape], line) + ["", "", line.get("by", "ours")] for line in self.all(kind)]
        for line in self.all("op"):
            peer = self.op_peer(line)
            rows.append(self.row([line["op"], line["shape"]], line) +
                        [cell(peer.get("seconds"), 1e6), cell(ratio(peer.get("seconds"), line["seconds"]), 1, 2), peer.get("peer", "")])
        table(rows)

    def op_peer(self, mine):
        """The fastest right one of the same op and shape."""
        same = [line for line in self.all("op_peer") if (line["op"], line["shape"]) == (mine["op"], mine["shape"]) and line.get("seconds")]
        return min(same, key=lambda line: line["seconds"], default={})

    def peer_of(self, mine, peer):
        """That peer's line of the same rows; a wrong answer or another routing counts as missing."""
        for line in self.all("moe_peer"):
            same = line["model"] == mine["model"] and line["tokens"] == mine["tokens"]
            if same and line["peer"].startswith(peer) and not line.get("wrong"):
                if line["routing"] != mine["routing"]:
                    sys.exit(f"gpu_report.py: {line['peer']} computed other rows at {mine['model']} T={mine['tokens']}")
                return line
        return {}

    def is_tried(self, peer):
        """Whether it computed some size, or failed at one: a peer that is not installed at all has no such line."""
        return any(line["peer"].startswith(peer) and "tokens" in line for line in self.all("moe_peer") + self.all("peer_missing"))

    def moe(self):
        """Prints the table; returns (the worst ratio, where peers that were tried are missing, details).

        No ratio is the worst where one of these is missing: it may be the faster one.
        """
        rows = [["MoE layer", "T", "ours us", "torch us", "vllm us", "best/ours", "of copy", "of GEMM", "experts us", "of GEMM",
                 "with router us"]]
        tried, ratios, details, missing = [peer for peer in PEERS if self.is_tried(peer)], [], [], []
        for mine in self.all("moe"):
            peers = [self.peer_of(mine, peer).get("seconds") for peer in PEERS]
            missing += [f"{peer} {mine['model']} T={mine['tokens']}" for peer in tried if not self.peer_of(mine, peer)]
            best = min((time for time in peers if time is not None), default=None)
            of_best = ratio(best, mine["seconds"])  # 1: as fast; more is better
            if of_best is not None:
                ratios.append(of_best)
            _, _, of_copy, _, of_gemm = self.rates(mine)
            expert_of_gemm = self.rates(mine, "expert_seconds")[4]
            rows.append([mine["model"], str(mine["tokens"]), cell(mine["seconds"], 1e6), cell(peers[0], 1e6), cell(peers[1], 1e6),
                         cell(of_best, 1, 2), cell(of_copy, 1, 3), cell(of_gemm, 1, 3), cell(mine["expert_seconds"], 1e6),
                         cell(expert_of_gemm, 1, 3), cell(mine["layer_seconds"], 1e6)])
            details.append({"model": mine["model"], "tokens": mine["tokens"], "seconds": mine["seconds"], "ratio": of_best,
                            "of_copy": of_copy, "of_gemm": of_gemm, "expert_of_gemm": expert_of_gemm})
        table(rows)
        return None if missing else min(ratios, default=None), missing, details

    def models(self):
        rows = [["model", "", "graphs", "in flight", "us a step", "device us", "device busy", "host us", "tokens/s", "of copy",
                 "of GEMM"]]
        for line in self.all("prefill"):
            of_gemm = self.rates(line)[4]
            rows.append([line["model"], f"prefill {line['sequences']}x{line['rows'] // line['sequences']}", "", "",
                         cell(line["seconds"], 1e6), "", "", "", cell(ratio(line["rows"], line["seconds"])), "",
                         cell(of_gemm, 1, 3)])
        for line in self.all("decode"):
            rows.append([line["model"], f"decode {line['batch']}", "yes" if line["graphs"] else "no", str(line["in_flight"]),
                         cell(line["seconds"], 1e6), cell(line["device_seconds"], 1e6), cell(line["device_busy"], 1, 3),
                         cell(line["host_seconds"], 1e6), cell(ratio(line["batch"], line["seconds"])),
                         cell(self.rates(line)[2], 1, 3), ""])
        table(rows)

    # --- figures
    def decode_bandwidth(self, batch):
        """The worst of the models, as the worker runs: graphs, two steps in flight."""
        shares = [self.rates(line)[2] for line in self.all("decode")
                  if line["batch"] == batch and line["graphs"] and line["in_flight"] == 2]
        return min((share for share in shares if share is not None), default=None)

    def expert_rate(self):
        shares = [self.rates(line, "expert_seconds")[4] for line in self.all("moe") if line["tokens"] >= LARGE]
        return min((share for share in shares if share is not None), default=None)

    def prefill_ratio(self):
        """SDPA's time over ours, the worst of prefill attention."""
        return min((share for line in self.all("op") if line["op"] == "attention prefill"
                    if (share := ratio(self.op_peer(line).get("seconds"), line["seconds"])) is not None), default=None)

    def flip_rate(self):
        return max((line["rate"] for line in self.all("flips") if line["rate"] is not None), default=None)


def main(files):
    report = Report(read(files))
    if report.tiny:
        print("tiny shapes: answers were checked, nothing was measured")
    print(report.first("device").get("name", "no device named"))
    report.ops()
    print()
    worst, missing, moe = report.moe()
    print()
    report.models()
    for line in report.all("peer_missing"):
        where = f" at {line['model']} T={line['tokens']}" if "model" in line else f" at {line['what']}" if "what" in line else ""
        print(f"missing: {line['peer']}{where}: {line['reason']}")
    for line in report.all("moe_peer") + report.all("op_peer") + report.all("gemm"):
        if line.get("wrong"):
            where = f"{line['model']} T={line['tokens']}" if "model" in line else f"{line.get('op', 'gemm')} {line.get('shape', '')}"
            print(f"wrong answer: {line.get('peer', 'torch')} at {where}: off by {line['difference']:.3g}")
    for line in report.all("skipped"):
        print(f"skipped: {line['what']}: {line['reason']}")
    for line in report.all("left_out"):
        print(f"left out: {line['what']}")
    for line in report.all("wrong"):
        print(f"WRONG: {line['what']}: {line['reason']}")
    for line in report.all("flips"):
        print(f"{line['model']}: {line['flips']} of {line['compared']} greedy tokens differ from those under --deterministic")
    finish("gpu", {"decode_b1_bandwidth": report.decode_bandwidth(1), "decode_b32_bandwidth": report.decode_bandwidth(32),
                   "expert_gemm_rate": report.expert_rate(), "moe_layer_worst_ratio": worst,
                   "prefill_attention_worst_ratio": report.prefill_ratio(), "flip_rate": report.flip_rate()},
           {"wrong": len(report.all("wrong")), "left_out": len(report.all("left_out")), "moe_layer_missing": missing, "tiny": report.tiny, "copy_bytes_per_second": report.copy_rate,
            "gemm_flops": report.gemm_rate, "peers": sorted({line["peer"] for line in report.all("moe_peer")}),
            "device": report.first("device"), "moe": moe, "decode": report.all("decode"), "prefill": report.all("prefill"),
            "ops": report.all("op")})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
