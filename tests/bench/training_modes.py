"""Modes of communication of a training step beside each other: ranks in network namespaces with shaped links.

Every rank is a real trainer (training_rank_bench) of a small model with experts, a shared expert and attention on one
thread; the link of each is shaped both ways (emulated_cluster.py), so that communication, not these cores, is what a step
waits for.  Modes take turns step by step; a step's figure is its slowest rank's, a mode's the median over rounds, a
ratio the median of the rounds' ratios.  Not calibrated to any paper's row yet: neither the shares of compute, all-to-all
and all-reduce, nor `fair`.  Needs root or user namespaces and iproute2.
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

MODES = ["fair", "fixed", "ar_last", "priority", "priority_ticketed", "partition", "pipelining", "preempt"]
COLUMNS = [("total", "step"), ("forward", "forward"), ("backward", "backward"), ("all_to_all", "all-to-all"),
           ("backward_all_to_all", "its backward"), ("all_reduce", "sums exposed"), ("optimizer", "optimizer")]


def write_config(folder, ranks):
    """A model in which a layer's sums send about three times what its all-to-alls of backward do."""
    (Path(folder) / "config.json").write_text(json.dumps({
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 512, "hidden_size": 256,
        "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 1024,
        "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "intermediate_size": 256,
        "moe_intermediate_size": 256, "shared_expert_intermediate_size": 128, "num_experts": 2 * ranks,
        "num_experts_per_tok": 2, "rms_norm_eps": 1e-6, "norm_topk_prob": True, "mlp_only_layers": [],
        "torch_dtype": "float32", "rope_theta": 10000.0}))


def run(args, modes):
    """By mode, its steps in the order of the rounds: each column's largest of all ranks."""
    with tempfile.TemporaryDirectory() as folder, Cluster(args.ranks, args.mbit * 1e6) as cluster:
        write_config(folder, args.ranks)
        store = Path(folder) / "store"
        store.mkdir()
        flags = [f"--config={folder}", f"--store={store}", f"--world={args.ranks}", f"--modes={','.join(modes)}",
                 f"--rounds={args.rounds}", f"--length={args.length}", f"--piece_bytes={args.piece_kib << 10}"]
        ranks = [cluster.start(rank, [str(Path(args.bin) / "training_rank_bench"), *flags, f"--rank={rank}",
                                      f"--address={cluster.address(rank)}"], stdout=subprocess.PIPE, text=True)
                 for rank in range(args.ranks)]
        try:
            outputs = [rank.communicate(timeout=900)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode != 0 for rank in ranks):
        sys.exit("training_modes: a rank failed")
    steps = collections.defaultdict(list)
    for parts in zip(*([json.loads(line) for line in output.splitlines()] for output in outputs)):
        if len({(part["mode"], part["loss"]) for part in parts}) != 1:
            sys.exit(f"training_modes: ranks differ: {parts}")
        steps[parts[0]["mode"]].append({name: max(part[name] for part in parts) for name, _ in COLUMNS})
    return steps


def main():
    parser = report.parser(__doc__)
    for name, default, text in (("ranks", 4, "one a namespace"), ("mbit", 400, "bandwidth of each rank's link, Mb/s"),
                                ("rounds", 9, "steps of each mode"), ("length", 256, "tokens of a rank's step"),
                                ("piece_kib", 256, "of a micro-op")):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    parser.add_argument("--modes", default=",".join(MODES))
    args = parser.parse_args()
    if args.quick:
        args.rounds = 2
    modes = args.modes.split(",")
    load = report.load_average()
    enter_namespace()
    steps = run(args, modes)
    print(f"{args.ranks} ranks, links of {args.mbit} Mb/s, {args.length} tokens a rank, pieces of {args.piece_kib} KiB; ms")
    ratios = {mode: statistics.median(first["total"] / step["total"] for first, step in zip(steps[modes[0]], steps[mode]))
              for mode in modes}
    report.table([["mode", *(title for _, title in COLUMNS), f"{modes[0]} / it"],
                  *([mode, *(1e3 * statistics.median(step[name] for step in steps[mode]) for name, _ in COLUMNS),
                     ratios[mode]] for mode in modes)])
    report.finish("training_modes", {f"{modes[0]}_over_{mode}": ratio for mode, ratio in ratios.items()},
                  {"ranks": args.ranks, "mbit": args.mbit, "rounds": args.rounds, "load": [load, report.load_average()]})


if __name__ == "__main__":
    main()
