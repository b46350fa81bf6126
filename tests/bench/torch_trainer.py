#!/usr/bin/env python3
"""A training step in PyTorch, as train_step_bench is one in Switchyard: the same flags, lines in and lines out.

    torch_trainer.py --how=eager|grouped_mm|compiled|script --model=DIR --tokens=FILE --dtype=bf16|fp32 --threads=N
                     --sequences=N --length=N [--store=DIR --rank=N --world=N]

eager, grouped_mm: HF transformers with that implementation of experts; compiled: torch.compile over grouped_mm.
script: training code for the demo model alone (torch_demo_model.py: experts on contiguous rows, chunks of torch.compile,
written for this machine), of that architecture alone.  bf16: autocast over fp32 parameters, as Switchyard keeps fp32 masters.
With --world: DistributedDataParallel over Gloo on loopback; each process has all experts and an equal part of the sequences.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch_environment  # noqa: F401  (before torch)
import numpy as np
import torch

BALANCE_WEIGHT = 0.01


class Transformers:
    def __init__(self, args):
        import transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        experts = "eager" if args.how == "eager" else "grouped_mm"
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, experts_implementation=experts)
        model.config.output_router_logits = True
        model.config.router_aux_loss_coef = model.router_aux_loss_coef = BALANCE_WEIGHT
        self.model = model.train()
        if args.world > 1:  # compiled behind it, so that sums overlap with backward
            model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=args.how != "compiled")
        self.call = torch.compile(model) if args.how == "compiled" else model
        self.bf16 = args.dtype == "bf16"

    def loss(self, ids, targets):
        """The loss to differentiate, and its cross-entropy."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            out = self.call(input_ids=ids, use_cache=False)
            entropy = torch.nn.functional.cross_entropy(out.logits.float().flatten(0, 1), targets.flatten())
        return entropy + BALANCE_WEIGHT * out.aux_loss, entropy


class Script:
    def __init__(self, args):
        from safetensors.torch import load_file
        from torch_demo_model import Config, Model, set_compile
        if args.dtype != "bf16":
            sys.exit("torch_trainer.py: script is bf16 only")
        if args.world > 1:
            sys.exit("torch_trainer.py: script is of one process")
        set_compile(True)
        self.model = Model(Config())
        self.model.load_state_dict(dict(self.names(load_file(Path(args.model) / "model.safetensors"))))

    @staticmethod
    def names(tensors):
        """From those of a checkpoint."""
        get = {name: tensor.float() for name, tensor in tensors.items()}
        yield "embedding", get["model.embed_tokens.weight"]
        yield "norm", get["model.norm.weight"]
        layers = 1 + max(int(name.split(".")[2]) for name in get if name.startswith("model.layers."))
        experts = 1 + max(int(name.split(".")[5]) for name in get if ".experts." in name)
        for i in range(layers):
            at, to = f"model.layers.{i}.", f"layers.{i}."
            attention, mlp = at + "self_attn.", at + "mlp."
            yield to + "norm1", get[at + "input_layernorm.weight"]
            yield to + "norm2", get[at + "post_attention_layernorm.weight"]
            yield to + "q_norm", get[attention + "q_norm.weight"]
            yield to + "k_norm", get[attention + "k_norm.weight"]
            yield to + "w_qkv", torch.cat([get[f"{attention}{x}_proj.weight"] for x in "qkv"])
            yield to + "w_o", get[attention + "o_proj.weight"]
            yield to + "w_router", get[mlp + "gate.weight"]
            both = [torch.cat([get[f"{mlp}experts.{e}.{x}_proj.weight"] for x in ("gate", "up")]) for e in range(experts)]
            yield to + "w_gate_up", torch.stack(both)
            yield to + "w_down", torch.stack([get[f"{mlp}experts.{e}.down_proj.weight"] for e in range(experts)])

    def loss(self, ids, targets):
        entropy, balance, _ = self.model.loss(ids, targets)
        return entropy + BALANCE_WEIGHT * balance.mean(), entropy


def make_optimizer(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                             lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


def mean_over_ranks(value, world):
    if world > 1:
        torch.distributed.all_reduce(value)
    return value.item() / world


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=["eager", "grouped_mm", "compiled", "script"], required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--store", help="folder in which processes meet")
    for name, default in (("threads", 2), ("sequences", 8), ("length", 512), ("rank", 0), ("world", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(args.threads)
    if args.world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{args.store}/torch-{args.how}", rank=args.rank, world_size=args.world)
    mine = args.sequences // args.world
    tokens = torch.from_numpy(np.fromfile(args.tokens, dtype="<i4").astype(np.int64))
    windows = tokens[:len(tokens) // (args.length + 1) * (args.length + 1)].view(-1, args.length + 1)
    trained = Script(args) if args.how == "script" else Transformers(args)
    optimizer, parameters = make_optimizer(trained.model), list(trained.model.parameters())
    step = 0
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        losses, begin = [], time.perf_counter()
        for _ in range(int(line)):
            first = step * args.sequences + args.rank * mine
            rows = windows[torch.arange(first, first + mine) % len(windows)]
            loss, entropy = trained.loss(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(mean_over_ranks(entropy.detach(), args.world))
            step += 1
        print(json.dumps({"seconds": time.perf_counter() - begin, "losses": losses}), file=out, flush=True)


if __name__ == "__main__":
    main()
