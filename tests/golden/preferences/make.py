#!/usr/bin/env python3
"""Makes what PyTorch says of direct preference optimization of checkpoints of ../models, on CPU in fp64: steps as TRL's
DPOTrainer computes them (loss_type "sigmoid"), with the reference's log probabilities computed before the first step.

    python3 make.py [NAME ...]             (needs torch, transformers, peft, safetensors; seconds a fixture)

NAME.safetensors:
  pairs [P, 3]                    tokens of the prompt, of the chosen and of the rejected answer of each pair
  steps.tokens [20, T]            of each step: pair after pair the prompt with the chosen, then with the rejected answer
  beta, label_smoothing
  steps.loss, steps.margin, steps.accuracy, steps.norm [20]    the mean loss of the pairs, their reward margin and
                                  accuracy, and the norm of all gradients, under ../training/make.py's optimizer, with
                                  AUX times the load-balancing loss of all rows added to the loss
lora-NAME.safetensors, and experts-NAME.safetensors of experts, too, also as ../adapters/make.py's:
  rank, alpha, targets, first.PARAMETER
"""
import importlib.util
import os
import sys

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("training", os.path.join(HERE, "..", "training", "make.py"))
training = importlib.util.module_from_spec(spec)
sys.path.remove(HERE)  # training's own "make" is that of ../models
sys.modules["training"] = training
spec.loader.exec_module(training)
from training import AUX, BETAS, CLIP, DECAY, EPS, FIXTURES, RATE, STEPS, load_balancing_loss_func  # noqa: E402

PAIRS = ((5, 9, 4), (1, 3, 12), (8, 1, 1), (3, 7, 6))
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
PARAMETERS = ("gate_up_proj", "down_proj")
# Fixture, beta, label smoothing, LoRA's rank, alpha and targets (indices into TARGETS + PARAMETERS) or none.
GOLDENS = (("olmoe-clip", 0.1, 0.0, None), ("qwen3-qknorm", 0.1, 0.2, None), ("mixtral-window", 0.1, 0.0, None),
           ("olmoe-clip", 0.2, 0.1, (4, 8, (0, 1, 2, 3))), ("olmoe-clip", 0.1, 0.0, (3, 6, (2, 4, 5))))


def kind_of(lora):
    if not lora:
        return ""
    return "experts-" if max(lora[2]) >= len(TARGETS) else "lora-"


def batch_of(generator):
    """The documents of a step: answers follow a rule, or are drawn."""
    documents = []
    for prompt_length, chosen_length, rejected_length in PAIRS:
        prompt = torch.randint(4, 24, (prompt_length,), generator=generator)
        chosen = [int(prompt[-1])]
        for _ in range(chosen_length):
            chosen.append((chosen[-1] * 7 + 3) % 24)
        rejected = torch.randint(4, 24, (rejected_length,), generator=generator)
        documents += [torch.cat([prompt, torch.tensor(chosen[1:])]), torch.cat([prompt, rejected])]
    return documents


def log_probs(model, documents):
    """Of the answers [2 P], and the load-balancing loss of all rows."""
    lengths = [len(document) - 1 for document in documents]
    tokens = torch.cat([document[:-1] for document in documents])[None]
    logits, router_logits = training.run(model, tokens, (lengths,))
    every = torch.log_softmax(logits, dim=-1).gather(1, torch.cat([d[1:] for d in documents])[:, None])[:, 0]
    sums = []
    for i, part in enumerate(every.split(lengths)):
        sums.append(part[PAIRS[i // 2][0] - 1:].sum())
    experts = getattr(model.config, "num_local_experts", None) or model.config.num_experts
    return torch.stack(sums), load_balancing_loss_func(tuple(router_logits), experts, model.config.num_experts_per_tok)


def train(model, groups, reference, batches, beta, smoothing):
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)
    trained = [p for group in groups for p in group["params"]]
    values = {key: [] for key in ("loss", "margin", "accuracy", "norm")}
    for documents, before in zip(batches, reference):
        optimizer.zero_grad()
        now, aux = log_probs(model, documents)
        rewards = beta * (now - before)
        margins = rewards[0::2] - rewards[1::2]
        loss = (-torch.nn.functional.logsigmoid(margins) * (1 - smoothing)
                - torch.nn.functional.logsigmoid(-margins) * smoothing).mean()
        (loss + AUX * aux).backward()
        for p in trained:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        values["norm"].append(torch.nn.utils.clip_grad_norm_(trained, CLIP).item())
        optimizer.step()
        values["loss"].append(loss.item())
        values["margin"].append(margins.mean().item())
        values["accuracy"].append((margins > 0).double().mean().item())
    return {"steps." + key: torch.tensor(value, dtype=torch.float64) for key, value in values.items()}


def make(name, beta, smoothing, lora):
    fixture = next(each for each in FIXTURES if each.name == name)
    torch.manual_seed(1100 + fixture.seed)
    model = training.load(fixture, training.Golden(name))
    generator = torch.Generator().manual_seed(1300 + fixture.seed)
    batches = [batch_of(generator) for _ in range(STEPS)]
    with torch.no_grad():
        reference = [log_probs(model, documents)[0] for documents in batches]
    out = {"pairs": torch.tensor(PAIRS, dtype=torch.int32),
           "steps.tokens": torch.stack([torch.cat(documents) for documents in batches]).int(),
           "beta": torch.tensor([beta], dtype=torch.float64),
           "label_smoothing": torch.tensor([smoothing], dtype=torch.float64)}
    if lora:
        rank, alpha, targets = lora
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha,
                                                 target_modules=[TARGETS[t] for t in targets if t < len(TARGETS)],
                                                 target_parameters=[PARAMETERS[t - len(TARGETS)] for t in targets
                                                                    if t >= len(TARGETS)] or None))
        out |= {"rank": torch.tensor([rank], dtype=torch.int32), "alpha": torch.tensor([alpha], dtype=torch.float64),
                "targets": torch.tensor(targets, dtype=torch.int32)}
        out |= {"first." + key: value.detach().clone().double()
                for key, value in get_peft_model_state_dict(model).items() if "lora_A" in key}
        groups = [{"params": [p for p in model.parameters() if p.requires_grad], "weight_decay": DECAY}]
    else:
        groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
                  {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    out |= train(model, groups, reference, batches, beta, smoothing)
    name = kind_of(lora) + name
    save_file({key: value.contiguous() for key, value in out.items()}, os.path.join(HERE, name + ".safetensors"))
    print(f"{name}: loss {out['steps.loss'][0]:.4f} ... {out['steps.loss'][-1]:.4f}, margins "
          f"{out['steps.margin'][0]:.4f} ... {out['steps.margin'][-1]:.4f}, "
          f"norms {out['steps.norm'].min():.3f} to {out['steps.norm'].max():.3f}")


if __name__ == "__main__":
    for each in GOLDENS:
        if not sys.argv[1:] or kind_of(each[3]) + each[0] in sys.argv:
            make(*each)
