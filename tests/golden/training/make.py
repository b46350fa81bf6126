#!/usr/bin/env python3
"""Makes what PyTorch's autograd and AdamW say of checkpoints of ../models, with HuggingFace transformers on CPU.

    python3 make.py [NAME ...]             (needs torch, transformers, safetensors; seconds a fixture)

NAME.safetensors:
  tokens [S, T], labels [S, T]    one batch; labels[s, t] is the token that should follow t, or -100 (not trained)
  loss, aux                       mean cross-entropy, and HF's load-balancing loss (all layers together); fp64
  gradient.PARAMETER              of loss + AUX * aux, by the checkpoint's names
  steps.tokens [20, S, T]         20 further batches, every token trained
  steps.loss [20]                 their mean cross-entropy under AdamW (RATE, BETAS, EPS, DECAY on matrices), clipped
                                  at CLIP
  steps.norm [20]                 the norm of all gradients before it was clipped
Computed in fp64 (but for transformers' own casts to fp32 in norms and routers), kept as fp32 where nothing else is said.
"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")
sys.path.insert(0, MODELS)
from fixtures import FIXTURES  # noqa: E402
from make import load_model, per_expert  # noqa: E402

NAMES = ["mixtral-window", "qwen2-shared", "qwen3-qknorm", "olmoe-clip", "gpt2-top2", "gpt2-top1"]
SEQUENCES, LENGTH = 3, 21
STEPS = 20
AUX = 0.1
RATE, BETAS, EPS, DECAY, CLIP = 2e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def load(fixture):
    if fixture.model_type == "gpt2_moe":
        return load_model(fixture, torch.float64).train()
    model = AutoModelForCausalLM.from_pretrained(os.path.join(MODELS, fixture.name), dtype=torch.float64)
    model.config._attn_implementation = "eager"
    model.config._experts_implementation = "eager"
    model.model.embed_tokens.padding_idx = None  # else torch would not train that token's embedding
    return model.train()


def losses(model, tokens, labels):
    out = model(tokens, output_router_logits=True, use_cache=False)
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    experts = getattr(model.config, "num_local_experts", None) or model.config.num_experts
    aux = load_balancing_loss_func(out.router_logits, experts, model.config.num_experts_per_tok)
    return loss, aux


def fill_gradients(model):
    """Zeros for experts that no token chose, where each is a module of its own: as where they are one tensor."""
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)


def train(model, batches):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPS)
    values, norms = [], []
    for tokens in batches:
        optimizer.zero_grad()
        loss, aux = losses(model, tokens[:, :-1], tokens[:, 1:])
        (loss + AUX * aux).backward()
        fill_gradients(model)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        values.append(loss.item())
    return values, norms


def make(fixture):
    generator = torch.Generator().manual_seed(100 + fixture.seed)
    model = load(fixture)
    vocab = model.config.vocab_size
    tokens = torch.randint(0, vocab, (SEQUENCES, LENGTH), generator=generator)
    labels = torch.randint(0, vocab, (SEQUENCES, LENGTH), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    loss, aux = losses(model, tokens, labels)
    (loss + AUX * aux).backward()
    fill_gradients(model)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    out = {"tokens": tokens.int(), "labels": labels.int(), "loss": loss.detach().reshape(1),
           "aux": aux.detach().reshape(1).double()}
    for name, gradient in per_expert(fixture, gradients).items():
        out["gradient." + name] = gradient.float().contiguous()
    # A few tokens only, so that there is something to learn.
    batches = torch.randint(0, 24, (STEPS, SEQUENCES, LENGTH + 1), generator=generator)
    batches[:, :, 1::2] = (batches[:, :, 0:-1:2] * 7 + 3) % 24
    values, norms = train(load(fixture), batches)
    out["steps.tokens"] = batches.int()
    out["steps.loss"] = torch.tensor(values, dtype=torch.float64)
    out["steps.norm"] = torch.tensor(norms, dtype=torch.float64)
    save_file(out, os.path.join(HERE, fixture.name + ".safetensors"))
    print(f"{fixture.name}: loss {loss.item():.6f}, aux {aux.item():.6f}, steps {values[0]:.4f} ... {values[-1]:.4f}, "
          f"norms {min(norms):.3f} to {max(norms):.3f}")


if __name__ == "__main__":
    wanted = sys.argv[1:] or NAMES
    for each in FIXTURES:
        if each.name in wanted:
            make(each)
