"""Weights of 8 and 4 bits beside llama.cpp's Q8_0, Q4_0 and Q4_K_M (its own quantizer) of the same bf16 weights.

Ours in two ways: --quantization=int8 and int4 from the bf16 checkpoint, and the files that llama.cpp reads (--model=FILE.gguf).
All engines are open at once and take turns within a round, in an order that moves on by one from round to round.
"""
import ctypes
import statistics
from contextlib import ExitStack

import olmoe_checkpoint as shape
import peer_engines
import report
import roofline
from switchyard_engine import Switchyard

KINDS = {"Q8_0": 7, "Q4_0": 2, "Q4_K_M": 15}  # llama.cpp's LLAMA_FTYPE of each
OURS = {"int8": "Q8_0", "int4": "Q4_0"}       # whose --quantization stands beside which of its kinds
CASES = {"prefill": None, "b1": 1, "b16": 16}
PROMPT, DECODE_TOKENS, PEER_TOKENS = 128, 16, 6
TARGETS = {"int8_b1": 1.5, "int8_b16": 2.5, "int8_prefill": 3.5, "int4_b1": 1.1, "int4_over_q4k_b1": 1.5, "int4_b16": 2.5,
           "int4_prefill": 2.4, "int8_b1_bound": 0.75, "int4_b1_bound": 0.75,
           **{f"gguf_{kind.lower()}_{case}": 1.0 if case == "b1" else 1.5 for kind in KINDS for case in CASES}}


def quantize(source, path, kind):
    """Writes what llama.cpp's quantizer makes of a file."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype = 2, KINDS[kind]
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)) != 0:
        raise RuntimeError(f"llama.cpp could not quantize to {kind}")


def quantized(cache, kind):
    """The file that llama.cpp's quantizer makes of the bf16 one."""
    import llama_cpp  # noqa: F401  before GBs are written for it

    source = shape.ensure_gguf(cache, report.log)
    return shape.ensure(source.parent / f"olmoe-{shape.LAYERS}-layers-{kind}.gguf", lambda path: quantize(source, path, kind), report.log)


def bytes_of_token(bits, head_bits):
    """Read for a token at batch 1: attention, 8 experts and lm_head at their bits (scales included), the rest in bf16."""
    hidden, expert = shape.HIDDEN, 3 * shape.HIDDEN * shape.EXPERT_HIDDEN
    held = shape.LAYERS * (4 * hidden * hidden + shape.TOP_K * expert) * bits / 8 + shape.VOCAB * hidden * head_bits / 8
    keys = 2 * (PROMPT + DECODE_TOKENS / 2) * hidden * roofline.BF16
    return held + shape.LAYERS * (shape.EXPERTS * hidden * roofline.BF16 + keys)


def check_same(name, peer, prompts, tokens):
    share = peer.same_greedy_share(prompts, tokens)
    report.log(f"{name}: {share:.1%} of the greedy tokens are llama.cpp's, too")
    if share < peer_engines.SAME_TOKEN_SHARE:
        raise SystemExit(f"few_bits.py: {name}'s answers are not the file's")
    return share


def measure(engine, case, prompts, tokens):
    if CASES[case] is None:
        return engine.prefill_rate(prompts)
    if isinstance(engine, Switchyard):
        return engine.decode_rate(prompts, DECODE_TOKENS)
    return engine.decode_rate(prompts, [answer[:PEER_TOKENS] for answer in tokens])


def figures_of(rows, bandwidth):
    """rows: {case: [round] of {engine: tokens/s}}."""
    def ratio(case, ours, *theirs):
        return statistics.median(row[ours] / max(row[name] for name in theirs) for row in rows[case])

    figures = {}
    for case in CASES:
        figures[f"int8_{case}"] = ratio(case, "int8", "llama Q8_0")
        figures[f"int4_{case}"] = ratio(case, "int4", *(["llama Q4_0"] if case == "b1" else ["llama Q4_0", "llama Q4_K_M"]))
        for kind in KINDS:
            figures[f"gguf_{kind.lower()}_{case}"] = ratio(case, f"gguf {kind}", f"llama {kind}")
    figures["int4_over_q4k_b1"] = ratio("b1", "int4", "llama Q4_K_M")
    for name, bits, head_bits in (("int8", 8.5, 8.5), ("int4", 4.5, 7)):
        rate = [row[name] * bytes_of_token(bits, head_bits) / probe for row, probe in zip(rows["b1"], bandwidth)]
        figures[f"{name}_b1_bound"] = statistics.median(rate)
    return figures


def run(args, threads, rounds, random_ids):
    """(figures, details), or (None, why not)."""
    try:
        files = {kind: quantized(args.cache, kind) for kind in KINDS}
    except ImportError as error:
        return None, f"not run: no Python package {error.name}"
    checkpoint = shape.ensure_hf(args.cache, report.log)
    with ExitStack() as stack:
        def serve(name, model, *flags):
            log = f"{args.cache}/few-bits-{name.replace(' ', '-')}.log"
            return stack.enter_context(Switchyard(args.bin, model, log, workers=1, threads=threads, flags=flags, kv_cache_bytes=256 << 20))

        engines = {name: serve(name, checkpoint, f"--quantization={name}") for name in OURS}
        engines.update({f"gguf {kind}": serve(f"gguf {kind}", path) for kind, path in files.items()})
        for kind, path in files.items():
            engines[f"llama {kind}"] = peer_engines.LlamaPeer(path, threads, cache_tokens=4096)
            stack.callback(engines[f"llama {kind}"].close)
        prompts = {case: [random_ids(PROMPT, seed) for seed in range(batch)] for case, batch in CASES.items() if batch}
        answers = {name: [answer["token_ids"] for answer in engine.generate(prompts["b16"], DECODE_TOKENS)]
                   for name, engine in engines.items() if isinstance(engine, Switchyard)}
        same = {kind: check_same(f"gguf {kind}", engines[f"llama {kind}"], prompts["b16"], answers[f"gguf {kind}"]) for kind in KINDS}
        same["int8"] = check_same("int8", engines["llama Q8_0"], prompts["b16"], answers["int8"])
        probe, rows, bandwidth = roofline.Probe(threads), {case: [] for case in CASES}, []
        for case, batch in CASES.items():
            for i in range(rounds + 1):
                ids = prompts.get(case) or random_ids(512, 2000 + i)
                before = probe()
                order = sorted(engines, key=lambda name: (list(engines).index(name) + i) % len(engines))
                row = {name: measure(engines[name], case, ids, answers["int8"][:batch]) for name in order}
                if case == "b1" and i > 0:
                    bandwidth.append((before + probe()) / 2)
                report.log(f"{case} round {i} of {rounds}{'' if i else ' (warms up, not counted)'}: " +
                           ", ".join(f"{name} {value:.1f}" for name, value in row.items()))
                rows[case] += [row] * (i > 0)
    rates = {case: {name: round(statistics.median(row[name] for row in rows[case]), 1) for name in rows[case][0]} for case in CASES}
    report.table([["tokens/s", *CASES]] + [[name, *(rates[case][name] for case in CASES)] for name in engines])
    return figures_of(rows, bandwidth), {"rates": rates, "same_tokens": {kind: round(share, 3) for kind, share in same.items()},
                                         "GB/s": round(statistics.median(bandwidth) / 1e9, 1), "rounds": rounds}
