"""Models larger than memory: decode and prefill in a memory control group of a half and a quarter of the experts' bytes.

Two models.  `random`: OLMoE's shape with 8 layers and random bf16 weights (6.4 GB of experts), beside llama.cpp, which maps
the same weights as bf16 GGUF, in a group of the same limit.  `demo`: the demo model with experts widened by columns of zeros
(6.4 GB, its real routing) on texts that fitted nothing, beside our own LRU without forecasts (--expert_policy=lru), with as
many slots.

Each engine starts anew in each round, with the page cache dropped; who is first changes from round to round.  Rates are
tokens a second of one sequence: decode by the mean time between two tokens, as a gRPC client sees them (llama.cpp: inside its
process, the same ids; both have computed another prompt before).  The greedy tokens of the demo model are compared with those
of a server with all experts in memory.

disk_share: bytes a second while reads were under way, prompts' among them, over what four readers of experts drawn at random
get before and after.  of_belady: our decode beside a cache that knows the future, begins each text's decode with what it kept of the
prompt, needs no time to compute and reads at that rate.

Needs root (control groups, the page cache), 35 GB of disk and 10 GB of memory; Python: torch safetensors; for llama.cpp
llama-cpp-python gguf.
"""
import contextlib
import json
import mmap
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import olmoe_checkpoint
import record_traces
import report
import widened_demo
from memory_group import MemoryGroup, drop_page_cache
from switchyard_engine import Switchyard

LAYERS = 8
OLMOE_EXPERT_BYTES = 3 * olmoe_checkpoint.HIDDEN * olmoe_checkpoint.EXPERT_HIDDEN * 2
DEMO_EXPERT_BYTES = 48 << 20
SHARES = {"half": 2, "quarter": 4}
CACHE_BYTES = 128 << 20
TEXT_CHARS, TEXT_TOKENS, RANDOM_TOKENS = 600, 40, 24
TARGETS = {"over_llama_half": 5, "over_llama_quarter": 5, "prefill_over_llama": 2.5, "over_lru_half": 1.15,
           "over_lru_quarter": 1.08, "disk_share": 0.9, "of_belady": 0.6}
PIECE, READERS = 1 << 20, 4


def disk_rate(path, expert_bytes, seconds=1.0):
    """Bytes a second of experts' places drawn at random, read past the page cache as workers read: pieces in order, several at once."""
    ends, lock, read = time.monotonic() + seconds, threading.Lock(), [0] * READERS

    def places():
        source, experts = random.Random(1), os.path.getsize(path) // expert_bytes
        while True:
            begin = source.randrange(experts) * expert_bytes // PIECE * PIECE
            yield from range(begin, min(begin + expert_bytes, os.path.getsize(path) - PIECE), PIECE)

    order = places()

    def work(which):
        buffer, file = mmap.mmap(-1, PIECE), os.open(path, os.O_RDONLY | os.O_DIRECT)
        while time.monotonic() < ends:
            with lock:
                place = next(order)
            read[which] += os.preadv(file, [buffer], place)
        os.close(file)

    begun = time.monotonic()
    threads = [threading.Thread(target=work, args=(which,)) for which in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(read) / (time.monotonic() - begun)


def belady_misses(answers, slots):
    """Copies a decoded token of a cache of so many slots that knows the future.  answers: [token][layer][k], prompt first."""
    uses = []  # (key, whether a decoded token needs it)
    for rows in answers:
        prompt, decoded = rows[:1 - TEXT_TOKENS], rows[1 - TEXT_TOKENS:]
        for counts, step in [(False, prompt)] + [(True, [row]) for row in decoded]:
            for layer in range(len(rows[0])):
                uses += [((layer, expert), counts) for expert in sorted({expert for row in step for expert in row[layer]})]
    following, last = [0] * len(uses), {}
    for at in range(len(uses) - 1, -1, -1):
        following[at] = last.get(uses[at][0], len(uses))
        last[uses[at][0]] = at
    held, misses = {}, 0
    for at, (key, counts) in enumerate(uses):
        if key not in held:
            misses += counts
            if len(held) == slots:
                del held[max(held, key=held.get)]
        held[key] = following[at]
    return misses / (len(answers) * (TEXT_TOKENS - 1))


class Run:
    """One start of Switchyard in a group of that limit: what it reads and how long it takes."""

    def __init__(self, args, model, limit, flags, name):
        self.log = Path(args.cache) / f"larger_than_memory-{name}.log"
        self._group = MemoryGroup(limit)
        flags = [f"--kv_cache_bytes={CACHE_BYTES}", f"--expert_file_dir={args.cache}/experts", *flags]
        self.engine = Switchyard(args.bin, model, self.log, flags=flags, enter=self._group.enter)

    def __enter__(self):
        drop_page_cache()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._group)
            stack.enter_context(self.engine)
            found = re.search(r"experts: (\S+) gives .*?experts: (\d+) slots of (\d+) KiB", self.log.read_text(), re.DOTALL)
            if not found:
                raise RuntimeError(f"the worker does not read experts from a disk; its log: {self.log}")
            self.file, self.slots, self.expert_bytes = found.group(1), int(found.group(2)), int(found.group(3)) << 10
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def counts(self):
        names = ("hits", "misses", "late", "prefetched", "wasted", "copied_bytes", "copy_seconds", "wait_seconds")
        return {name: sum(self.engine.worker_series(f"switchyard_worker_expert_{name}_total").values()) for name in names}

    def bench(self, lines, max_tokens):
        """`switchyard bench` of requests one after another; with what was copied meanwhile."""
        before = self.counts()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        done = self.engine._call("bench", "--input=-", "--json", "--concurrency=1", f"--num_requests={len(lines)}",
                                 f"--max_tokens={max_tokens}", text=text)
        if done.returncode != 0:
            raise RuntimeError(f"switchyard bench: {done.stdout}{done.stderr}")
        after = self.counts()
        return json.loads(done.stdout), {name: after[name] - before[name] for name in after}


def texts(count):
    kinds = ("prose", "cpp", "python", "build")
    return [record_traces.pieces(kinds[i % len(kinds)], "held")[3 * (i // len(kinds))][:TEXT_CHARS] for i in range(count)]


def measured(run, lines, max_tokens):
    """Of requests one after another: tokens/s of decoding, and what the disk gave meanwhile beside what it can give."""
    before = disk_rate(run.file, run.expert_bytes)
    bench, counts = run.bench(lines, max_tokens)
    rate = statistics.mean([before, disk_rate(run.file, run.expert_bytes)])
    return {"decode": 1 / bench["inter_token_seconds"]["mean"], "ttft": bench["ttft_seconds"]["p50"], "slots": run.slots,
            "disk_MBps": rate / 1e6, "disk_share": counts["copied_bytes"] / counts["copy_seconds"] / rate,
            "disk_busy": counts["copy_seconds"] / bench["elapsed_seconds"], **counts}


def demo_round(args, model, limit, prompts, memory, number):
    """{policy: measured} of the texts."""
    kinds = {"auto": [], "lru": ["--expert_policy=lru", "--forecast=never"]}
    results = {}
    for kind in sorted(kinds, reverse=number % 2 == 1):
        with Run(args, model, limit, [f"--expert_memory={memory}", *kinds[kind]], kind) as run:
            lines = [{"text": text, "temperature": 0, "ignore_eos": True} for text in prompts]
            results[kind] = measured(run, lines, TEXT_TOKENS)
    return results


ASK = (f"--max_tokens={TEXT_TOKENS}", "--temperature=0", "--ignore_eos")


def size_of_slots(args, model, limit):
    """Bytes and number of the slots that a worker chooses in such a group."""
    with Run(args, model, limit, ["--expert_memory=auto"], "auto") as run:
        return run.slots * run.expert_bytes, run.slots


def all_in_memory(args, model, prompts):
    """The answers, with their routing."""
    with Switchyard(args.bin, model, Path(args.cache) / "larger_than_memory-all.log", flags=[f"--kv_cache_bytes={CACHE_BYTES}"]) as engine:
        return [engine.ask("generate", f"--text={text}", *ASK, "--return_expert_paths") for text in prompts]


def check_same(args, model, limit, prompts, memory, expected):
    with Run(args, model, limit, [f"--expert_memory={memory}"], "same") as run:
        got = [run.engine.ask("generate", f"--text={text}", *ASK)["token_ids"] for text in prompts]
    if got != [answer["token_ids"] for answer in expected]:
        sys.exit("larger_than_memory.py: in few slots the answers are others than with all experts in memory")


def random_ids(count, seed):
    source = random.Random(seed)
    return [source.randrange(3, olmoe_checkpoint.EOS) for _ in range(count)]


def random_round(args, model, gguf, limit, number):
    """{engine: {decode, prefill}} of random weights and ids, which Switchyard draws and llama.cpp is given."""
    work = {"warm_up": random_ids(512, 300 + number), "prefill": random_ids(512, 100 + number), "prompt": random_ids(64, 200 + number)}
    with Run(args, model, limit, ["--expert_memory=auto"], "random") as run:
        run.bench([{"token_ids": work["warm_up"], "temperature": 0}], 1)
        first, _ = run.bench([{"token_ids": work["prefill"], "temperature": 0}], 1)
        drawn = {"token_ids": work["prompt"], "temperature": 1, "seed": number, "ignore_eos": True}
        ours = {**measured(run, [drawn], RANDOM_TOKENS), "prefill": 512 / first["ttft_seconds"]["max"]}
        work["tokens"] = run.engine.ask("generate", f"--token_ids={','.join(map(str, work['prompt']))}", "--temperature=1",
                                        f"--seed={number}", f"--max_tokens={RANDOM_TOKENS}", "--ignore_eos")["token_ids"]
    if gguf is None:
        return {"switchyard": ours}
    with MemoryGroup(limit) as group:
        drop_page_cache()
        done = subprocess.run([sys.executable, "-B", str(Path(__file__).parent / "llama_mmap.py"), str(gguf), "2"],
                              input=json.dumps(work), capture_output=True, text=True, preexec_fn=group.enter)
    if done.returncode != 0:
        raise RuntimeError(f"llama.cpp: {done.stderr[-2000:]}")
    llama = json.loads(done.stdout.splitlines()[-1])
    return {"switchyard": ours, "llama.cpp": {**llama, "decode": llama["decode_mean"]}}


def median(rounds, *path):
    values = []
    for entry in rounds:
        for key in path:
            entry = entry[key]
        values.append(entry)
    return statistics.median(values)


def main():
    args = report.arguments(__doc__)
    report.require("torch", "safetensors")
    if os.geteuid() != 0:
        sys.exit("larger_than_memory.py: needs root, for control groups and to drop the page cache")
    rounds, prompts = (1, texts(3)) if args.quick else (3, texts(12))
    load = report.load_average()
    figures, details, rows = {}, {"rounds": rounds}, [["tokens/s", "Switchyard", "LRU", "llama.cpp", "disk MB/s", "disk share"]]
    least = lambda key, value: figures.update({key: min(figures.get(key, value), value)})
    demo = widened_demo.ensure(args.cache, DEMO_EXPERT_BYTES, report.log)
    expected = all_in_memory(args, demo, prompts)
    for name, part in SHARES.items():
        demo_bytes = 128 * 3 * widened_demo.HIDDEN * json.loads((demo / "config.json").read_text())["moe_intermediate_size"] * 2
        limit = demo_bytes // part
        memory, slots = size_of_slots(args, demo, limit)
        check_same(args, demo, limit, prompts, memory, expected)
        misses, results = belady_misses([answer["expert_paths"] for answer in expected], slots), []
        for number in range(rounds):
            results.append(demo_round(args, demo, limit, prompts, memory, number))
            report.log(f"demo {name} round {number + 1} of {rounds}: {json.dumps(results[-1])}")
        figures[f"over_lru_{name}"] = statistics.median(r["auto"]["decode"] / r["lru"]["decode"] for r in results)
        seconds = [misses * demo_bytes / 128 / (r["auto"]["disk_MBps"] * 1e6) for r in results]
        least("of_belady", statistics.median(r["auto"]["decode"] * bound for r, bound in zip(results, seconds)))
        least("disk_share", median(results, "auto", "disk_share"))
        rows.append([f"demo decode, {name}", median(results, "auto", "decode"), median(results, "lru", "decode"), "-",
                     median(results, "auto", "disk_MBps"), median(results, "auto", "disk_share")])
        details[f"demo_{name}"] = {"slots": slots, "belady_misses_a_token": round(misses, 2),
                                   "disk_busy": round(median(results, "auto", "disk_busy"), 2)}
    model = olmoe_checkpoint.ensure_hf(args.cache, report.log, LAYERS)
    try:
        import gguf  # noqa: F401
        import llama_cpp  # noqa: F401
        llama = olmoe_checkpoint.ensure_gguf(args.cache, report.log, LAYERS)
    except ImportError as error:
        llama = None
        report.log(f"llama.cpp: not run: no Python package {error.name}")
    for name, part in SHARES.items():
        limit = LAYERS * olmoe_checkpoint.EXPERTS * OLMOE_EXPERT_BYTES // part
        results = []
        for number in range(rounds):
            results.append(random_round(args, model, llama, limit, number))
            report.log(f"random {name} round {number + 1} of {rounds}: {json.dumps(results[-1])}")
        for what in ("decode", "prefill"):
            peer = None
            if llama is not None:
                peer = median(results, "llama.cpp", what)
                ratio = statistics.median(r["switchyard"][what] / r["llama.cpp"][what] for r in results)
                key = f"over_llama_{name}" if what == "decode" else "prefill_over_llama"
                least(key, ratio)
            rows.append([f"random {what}, {name}", median(results, "switchyard", what), "-", peer,
                         median(results, "switchyard", "disk_MBps"), median(results, "switchyard", "disk_share")])
        details[f"random_{name}"] = {"slots": results[0]["switchyard"]["slots"]}
        least("disk_share", median(results, "switchyard", "disk_share"))
    report.table(rows)
    for key, target in TARGETS.items():
        if key in figures and figures[key] < target:
            print(f"missed: {key} {figures[key]:.3f} < {target}")
    report.finish("larger_than_memory", figures, {**details, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
