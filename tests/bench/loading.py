#!/usr/bin/env python3
"""How fast a checkpoint of gpt-oss-20b's shape loads, and what memory that takes: random MXFP4 experts, the rest in bf16.

  loading.py [--layers=24] [--vocab=201088] [--folder=build/bench/loading] [--form=published|gguf|plain …] [--rounds=3] [--threads=2] [--keep] [--touch_first] [--server_flag=FLAG …] [--quick]

published: safetensors with blocks and scales, as openai/gpt-oss-20b is; gguf: one file with the same matrices, as llama.cpp's
converter writes it; plain: experts dequantized to bf16 (3.8 times the bytes, so want few layers).  Files are made in
the folder and removed, unless --keep.  Each is read once, so that the page cache has it, then a server with one
worker starts on it; seconds are until `switchyard status` says that it is ready, the peak is the worker's and the server's
VmHWM together, tokens are of one stream of 32.  --quick: 2 layers, one round.

--touch_first: before each round another process touches as much memory, says how fast, and ends.  In a virtual machine
whose host provides memory only when it is touched, that is most of a load's time, and is not the server's.
"""
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import report
from gpt_oss_files import FORMS, Shape, write_model
from switchyard_engine import Switchyard

KV_CACHE_BYTES = 256 << 20
CHUNK = 16 << 20


def peak_bytes(pid):
    """VmHWM of a process and its children."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            if str(pid) in (parent, path.name):
                total += int(re.search(r"^VmHWM:\s+([0-9]+) kB", path.joinpath("status").read_text(), re.M)[1]) << 10
        except (OSError, TypeError):
            continue
    return total


def read_once(folder):
    size = 0
    for path in folder.iterdir():
        with open(path, "rb", buffering=0) as file:
            while part := file.read(CHUNK):
                size += len(part)
    return size


def touch(size, threads):
    """Seconds in which threads of a process of their own write to so many bytes of new memory, in huge pages."""
    code = f"""
import mmap, threading, time, numpy
size = {size} // {threads} >> 21 << 21
parts = [mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range({threads})]
for part in parts: part.madvise(mmap.MADV_HUGEPAGE)
workers = [threading.Thread(target=numpy.frombuffer(part, numpy.uint8).fill, args=(1,)) for part in parts]
begin = time.monotonic()
for worker in workers: worker.start()
for worker in workers: worker.join()
print(time.monotonic() - begin)
"""
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def measure(model, folder, args):
    touched = None
    if args.touch_first:
        touched = touch(read_once(folder) + KV_CACHE_BYTES, args.threads)
    size = read_once(folder)
    begin = time.monotonic()
    with Switchyard(args.bin, model, folder.parent / "server.log", threads=args.threads, kv_cache_bytes=KV_CACHE_BYTES,
                    flags=["--max_model_len=512", *args.server_flag]) as engine:
        seconds = time.monotonic() - begin
        peak = peak_bytes(engine._process.pid)
        rate = engine.decode_rate([list(np.random.default_rng(1).integers(0, args.vocab, 32).tolist())], 32)
    return {"seconds": seconds, "touch_seconds": touched or 0, "gb_per_s": size / seconds / 1e9, "peak_over_bytes": peak / (size + KV_CACHE_BYTES), "tokens_per_s": rate}


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=201_088)
    parser.add_argument("--folder", type=Path, default=report.ROOT / "build/bench/loading")
    parser.add_argument("--form", nargs="*", choices=FORMS, default=["published", "gguf"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--touch_first", action="store_true")
    parser.add_argument("--server_flag", action="append", default=[])
    args = parser.parse_args()
    if args.quick:
        args.layers, args.rounds = 2, 1
    load, results = report.load_average(), {}
    for form in args.form:
        folder = args.folder / f"{form}-{args.layers}-{args.vocab}"
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_model(folder, form, Shape(layers=args.layers, vocab=args.vocab))
            (folder / "made").touch()
        model = folder / "model.gguf" if form == "gguf" else folder
        rounds = [measure(model, folder, args) for _ in range(args.rounds)]
        results[form] = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        results[form]["gb"] = read_once(folder) / 1e9
        if args.touch_first:
            touched, loaded = (", ".join(f"{each[key]:.2f}" for each in rounds) for key in ("touch_seconds", "seconds"))
            print(f"{'':10} as much new memory was written once in {touched} s; ready in {loaded} s")
        print(f"{form:10} {results[form]['gb']:6.2f} GB: ready in {results[form]['seconds']:6.2f} s ({results[form]['gb_per_s']:.2f} GB/s), "
              f"peak {results[form]['peak_over_bytes']:.3f} x bytes and cache, {results[form]['tokens_per_s']:.1f} tokens/s", flush=True)
        if not args.keep:
            shutil.rmtree(folder)
    report.finish("loading", {f"{form}_{key}": value for form, result in results.items() for key, value in result.items()},
                  {"layers": args.layers, "vocab": args.vocab, "rounds": args.rounds, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
