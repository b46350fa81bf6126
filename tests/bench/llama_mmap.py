"""llama.cpp over a mapped GGUF, as larger_than_memory.py runs it: in a control group of its own process.

usage: llama_mmap.py GGUF THREADS < {"warm_up": ids, "prefill": ids, "prompt": ids, "tokens": ids}; prints rates as a line of
JSON.  The first, untimed, brings what every token reads into memory, as the other engine has it when it is ready.
"""
import json
import statistics
import sys
import time

from peer_engines import LlamaPeer


def read_bytes():
    with open("/proc/self/io") as counts:
        return next(int(line.split()[1]) for line in counts if line.startswith("read_bytes"))


def main():
    work = json.load(sys.stdin)
    peer = LlamaPeer(sys.argv[1], int(sys.argv[2]), cache_tokens=2048)
    peer.prefill_rate(work["warm_up"])
    prefill = peer.prefill_rate(work["prefill"])
    peer.prefill_rate(work["prompt"])
    length, seconds, before = len(work["prompt"]), [], read_bytes()
    begun = time.perf_counter()
    for step, token in enumerate(work["tokens"]):
        seconds.append(peer.decode_one(token, length + step))
    taken, read = time.perf_counter() - begun, read_bytes() - before
    print(json.dumps({"prefill": prefill, "decode": 1 / statistics.median(seconds), "decode_mean": len(seconds) / taken,
                      "mb_per_token": read / len(seconds) / 1e6, "mb_per_second": read / taken / 1e6, "version": peer.version}))


if __name__ == "__main__":
    main()
