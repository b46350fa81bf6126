#!/usr/bin/env python3
"""Matrix products and grouped experts (gemm_bench) beside oneDNN: the one that gemm_bench was built with, else PyTorch's."""
import argparse
import json
import os
import subprocess
import sys

import report
import roofline

SIDE = 2048
ROWS = [1, 16, 32, 64, 128, 512, 2048]


def pytorch_rates(threads):
    """GFLOP/s of torch's bf16 product, N = K = 2048, by rows; the matrix stays in the cache."""
    try:
        import torch
    except ImportError:
        report.log("gemm_bench was built without oneDNN, and this Python has no torch: there is nothing to compare with")
        return {}
    torch.set_num_threads(threads)
    rates = roofline.onednn_rates([("product", 1, rows, SIDE, SIDE) for rows in ROWS])
    return {rows: rates[rows, SIDE, SIDE] * 1e-9 for rows in ROWS}


def main():
    flags = argparse.ArgumentParser(description=__doc__, epilog="Further flags are gemm_bench's.")
    flags.add_argument("--bin", default=str(report.ROOT / "build/release/bin"), help="folder of the built programs")
    flags.add_argument("--threads", type=int, default=os.cpu_count())
    args, others = flags.parse_known_args()
    command = [f"{args.bin}/gemm_bench", f"--threads={args.threads}", *others]
    load = report.load_average()
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if output.returncode:
        sys.exit(output.returncode)
    *table, last = output.stdout.splitlines()
    print("\n".join(table))
    result = json.loads(last)
    if result["dtype"] == "bf16" and not any(key.startswith("oneDNN") for key in result):
        for rows, rate in pytorch_rates(args.threads).items():
            print(f"PyTorch M={rows} (one matrix, cached)".ljust(88) + f"{rate:8.0f} GFLOP/s")
            result[f"PyTorch M={rows}"] = {"gflops": rate}
    print(json.dumps({**result, "load": [load, report.load_average()]}))


main()
