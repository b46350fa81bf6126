"""What gpu_report.py makes of lines: those of a tiny run (argument: a folder with ours.jsonl), and invented ones."""
import copy
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURES = ("decode_b1_bandwidth", "decode_b32_bandwidth", "expert_gemm_rate", "moe_layer_worst_ratio", "prefill_attention_worst_ratio",
           "flip_rate")
KINDS = {"device", "copy", "gemm", "op", "moe", "prefill", "decode", "flips", "checked"}
work = Path(sys.argv[1])


def report(lines, *, more="", fails=False):
    file = work / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + more)
    done = subprocess.run([sys.executable, "-B", HERE / "gpu_report.py", file], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else (done.stdout, json.loads(done.stdout.splitlines()[-1]))


ours = [json.loads(line) for line in (work / "ours.jsonl").read_text().splitlines()]
assert {line["kind"] for line in ours} == KINDS, {line["kind"] for line in ours}
assert all(line["tiny"] for line in ours)
assert all(line.get(key) is None for line in ours for key in line if "seconds" in key or key in ("spread", "rate", "device_busy"))
text, figures = report(ours)
assert "nothing was measured" in text
assert all(key in figures and figures[key] is None for key in FIGURES), figures
assert figures["benchmark"] == "gpu" and figures["moe_layer_missing"] == []

# The routing that gpu_bench and peers.py make is the same.
for moe in (line for line in ours if line["kind"] == "moe"):
    checksum = 0
    for number in range(4):
        said = subprocess.run([sys.executable, "-B", HERE / "peers.py", "--routing", str(moe["tokens"]), "8", "2", str(number)],
                              capture_output=True, text=True, check=True).stdout
        checksum = (checksum * 31 + int(said)) & 0xFFFFFFFF
    assert checksum == moe["routing"], (checksum, moe)

# Figures, from invented times.
moe = {"kind": "moe", "model": "A", "tokens": 4096, "routing": 5, "bytes": 10, "flops": 600, "seconds": 3.0, "expert_seconds": 2.0,
       "layer_seconds": 4.0}
small = {**moe, "tokens": 1, "seconds": 1.0, "expert_seconds": 100.0}
decode = {"kind": "decode", "model": "A", "batch": 1, "graphs": True, "in_flight": 2, "seconds": 2.0, "bytes": 80,
          "device_seconds": 1.5, "device_busy": 0.7, "host_seconds": 0.1}


def peer(name, of, seconds):
    return {"kind": "moe_peer", "peer": name, "model": of["model"], "tokens": of["tokens"], "routing": 5, "seconds": seconds,
            "difference": 0.0}


lines = [{"kind": "copy", "bytes": 100, "seconds": 2.0}, {"kind": "gemm", "side": 9, "flops": 1000, "seconds": 2.0}, moe, small, decode,
         {**decode, "model": "B", "bytes": 60}, {**decode, "batch": 32, "graphs": False}, {**decode, "batch": 32, "in_flight": 1},
         {**decode, "batch": 32, "bytes": 90}, peer("torch 1", moe, 2.0), peer("vllm 1", moe, 4.0), peer("torch 1", small, 4.0),
         peer("vllm 1", small, 5.0), {"kind": "flips", "model": "A", "compared": 1000, "flips": 5, "rate": 0.005}]
text, figures = report(lines)
prefill = {"kind": "op", "op": "attention prefill", "shape": "B=1", "bytes": 1, "flops": 1, "seconds": 4.0}
faster = {"kind": "op_peer", "peer": "SDPA flash", "op": "attention prefill", "shape": "B=1", "seconds": 3.0}
lines += [prefill, {**faster, "peer": "SDPA cudnn", "seconds": 5.0}, faster, {**faster, "shape": "B=8", "seconds": 1.0},
          {**faster, "peer": "SDPA efficient", "seconds": None, "wrong": True, "difference": 0.5}]
text, figures = report(lines)
assert "wrong answer: SDPA efficient at attention prefill B=1: off by 0.5" in text
want = {"prefill_attention_worst_ratio": 0.75, "wrong": 0, "left_out": 0, "decode_b1_bandwidth": 0.6, "decode_b32_bandwidth": 0.9, "expert_gemm_rate": 0.6, "moe_layer_worst_ratio": 0.667,
        "flip_rate": 0.005, "moe_layer_missing": []}
assert {key: figures[key] for key in want} == want, figures

# Where a peer that was tried is missing or wrong there is no worst ratio, as it may be the faster one; that of its size is to the others.
missing = [line for line in lines if not (line["kind"] == "moe_peer" and line["peer"] == "torch 1" and line["tokens"] == 4096)]
missing.append({"kind": "peer_missing", "peer": "torch 1", "model": "A", "tokens": 4096, "reason": "because"})
text, figures = report(missing)
assert figures["moe_layer_worst_ratio"] is None and figures["moe_layer_missing"] == ["torch A T=4096"], figures
assert round(figures["moe"][0]["ratio"], 3) == 1.333, figures
none = [line for line in missing if not (line["kind"] == "moe_peer" and line["tokens"] == 4096)]
assert report(none)[1]["moe_layer_missing"] == ["torch A T=4096", "vllm A T=4096"]
assert "missing: torch 1 at A T=4096: because" in text
wrong = copy.deepcopy(lines)
next(line for line in wrong if line["kind"] == "moe_peer").update(wrong=True, seconds=None)
text, figures = report(wrong)
assert figures["moe_layer_worst_ratio"] is None and figures["moe_layer_missing"] == ["torch A T=4096"], figures
assert "wrong answer: torch 1" in text
# One that is not installed is missed nowhere; one that failed at every size, everywhere.
alone = [line for line in lines if not line.get("peer", "").startswith("vllm")] + [{"kind": "peer_missing", "peer": "vllm 1", "reason": "no module"}]
figures = report(alone)[1]
assert figures["moe_layer_worst_ratio"] == 0.667 and figures["moe_layer_missing"] == [], figures
failed = alone + [{"kind": "peer_missing", "peer": "vllm 1", "model": "A", "tokens": tokens, "reason": "because"} for tokens in (1, 4096)]
figures = report(failed)[1]
assert figures["moe_layer_worst_ratio"] is None and len(figures["moe_layer_missing"]) == 2, figures
# Another routing is no comparison.
other = copy.deepcopy(lines)
next(line for line in other if line["kind"] == "moe_peer")["routing"] = 6
assert "other rows" in report(other, fails=True)
# What PyTorch copies or multiplies faster is the ceiling; our own wrong answers, and lines that a crash cut off, are counted.
text, figures = report(lines + [{"kind": "gemm", "by": "torch", "side": 9, "flops": 1000, "seconds": 1.0},
                                {"kind": "wrong", "what": "moe B", "reason": "differs"}, {"kind": "left_out", "what": "flips"}], more='{"kind": "op", "o\n')
assert figures["expert_gemm_rate"] == 0.3 and figures["wrong"] == 2 and figures["left_out"] == 1, figures
assert "WRONG: moe B: differs" in text and "left out: flips" in text and "WRONG: lines.jsonl:" in text, text
print("report_test: ok")
