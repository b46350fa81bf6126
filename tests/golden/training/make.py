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
And where experts have a capacity (GPT-2 alone: ../models/gpt2_moe.py), of all MoE layers:
  capacity_factor, dropped        how many choices of the batch found no room; steps.dropped [20] of the steps' batches
And where routers' biases are moved by load, by bias_rate after each step (DeepSeek-V3, 2.1.2):
  bias_rate, steps.bias [20, MoE layers, E]    what they are after it
And where the sequences consist of documents (without steps): the model runs once for each document, alone, and
transformers casts nothing to fp32:
  borders                         indexes into tokens, flat, of the documents' first tokens but the sequences' first
Computed in fp64 (but for transformers' own casts to fp32 in norms and routers), kept as fp32 where nothing else is said.
"""
import contextlib
import dataclasses
import os
import sys
from unittest import mock

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.models.mixtral import modeling_mixtral
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")
sys.path.insert(0, MODELS)
from files import per_expert  # noqa: E402
from fixtures import FIXTURES  # noqa: E402
from make import load_model  # noqa: E402



@dataclasses.dataclass
class Golden:
    name: str
    fixture: str = ""  # of ../models; "" = of the same name
    capacity_factor: float = 0.0
    bias_rate: float = 0.0
    documents: tuple = ()  # of each sequence the lengths of its documents


# One token, a part of a tile of 64 keys, all but one of it, a tile, one more, several.
DOCUMENTS = ((63, 1, 64, 5, 27), (20, 65, 75), (130, 30))

GOLDENS = [Golden("mixtral-window"), Golden("qwen2-shared"), Golden("qwen3-qknorm"), Golden("olmoe-clip"),
           Golden("gpt2-top2"), Golden("gpt2-top1"),
           Golden("gpt2-top1-capacity", "gpt2-top1", capacity_factor=0.9),
           Golden("gpt2-top2-capacity", "gpt2-top2", capacity_factor=0.8),
           Golden("gpt2-bias", bias_rate=0.02),
           Golden("mixtral-window-documents", "mixtral-window", documents=DOCUMENTS),
           Golden("gpt2-top2-documents", "gpt2-top2", documents=DOCUMENTS)]
SEQUENCES, LENGTH = 3, 21
STEPS = 20
AUX = 0.1
RATE, BETAS, EPS, DECAY, CLIP = 2e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def load(fixture, golden):
    if fixture.model_type == "gpt2_moe":
        model = load_model(fixture, torch.float64).train()
        for block in moe_blocks(model):
            block.capacity_factor = golden.capacity_factor
        return model
    model = AutoModelForCausalLM.from_pretrained(os.path.join(MODELS, fixture.name), dtype=torch.float64)
    model.config._attn_implementation = "eager"
    model.config._experts_implementation = "eager"
    model.model.embed_tokens.padding_idx = None  # else torch would not train that token's embedding
    return model.train()


def run(model, tokens, documents):
    """Logits [S * T, V], and of each layer the router's logits [S * T, E]."""
    if not documents:
        out = model(tokens, output_router_logits=True, use_cache=False)
        return out.logits.flatten(0, 1), out.router_logits
    parts = [part for s, lengths in enumerate(documents) for part in tokens[s].split(list(lengths))]
    outs = [model(part[None], output_router_logits=True, use_cache=False) for part in parts]
    return torch.cat([out.logits[0] for out in outs]), [torch.cat(of) for of in zip(*(out.router_logits for out in outs))]


def losses(model, tokens, labels, documents=()):
    logits, router_logits = run(model, tokens, documents)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100)
    experts = getattr(model.config, "num_local_experts", None) or model.config.num_experts
    if getattr(model.config, "topk_method", "greedy") == "noaux_tc":  # of what was chosen, which transformers' cannot know
        probability = torch.softmax(torch.cat(router_logits), dim=-1).mean(dim=0)
        chosen = torch.cat([block.chosen for block in moe_blocks(model)])
        aux = experts * (torch.nn.functional.one_hot(chosen, experts).sum(dim=1).double().mean(dim=0) * probability).sum()
    else:
        aux = load_balancing_loss_func(tuple(router_logits), experts, model.config.num_experts_per_tok)
    return loss, aux


@contextlib.contextmanager
def without_casts():
    """Mixtral's norms, softmaxes and rotations as transformers has them, but in the model's fp64."""
    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def rotation(self, x, position_ids, **unused):
        exponents = torch.arange(0, 2 * self.inv_freq.numel(), 2, dtype=torch.float64) / (2 * self.inv_freq.numel())
        angles = position_ids[..., None].double() / self.config.rope_parameters["rope_theta"] ** exponents
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def uncast(softmax):
        return lambda x, dim=None, dtype=None, **unused: softmax(x, dim=dim)

    functional = torch.nn.functional
    with mock.patch.object(modeling_mixtral.MixtralRMSNorm, "forward", norm), \
         mock.patch.object(modeling_mixtral.MixtralRotaryEmbedding, "forward", rotation), \
         mock.patch.object(functional, "softmax", uncast(functional.softmax)), \
         mock.patch.object(torch, "softmax", uncast(torch.softmax)):
        yield


def moe_blocks(model):
    return [m for m in model.modules() if type(m).__name__ == "MoeBlock"]


def take_dropped(model):
    dropped = sum(block.dropped for block in moe_blocks(model))
    for block in moe_blocks(model):
        block.dropped = 0
    return dropped


@torch.no_grad()
def move_biases(model, rate):
    for block in moe_blocks(model):
        load = torch.bincount(block.chosen.flatten(), minlength=model.config.num_experts).double()
        block.gate.e_score_correction_bias += rate * torch.sign(load.mean() - load)
    return torch.stack([block.gate.e_score_correction_bias.clone() for block in moe_blocks(model)])


def fill_gradients(model):
    """Zeros for experts that no token chose, where each is a module of its own: as where they are one tensor."""
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)


def train(model, batches, bias_rate, out):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPS)
    values, norms, dropped, biases = [], [], [], []
    for tokens in batches:
        optimizer.zero_grad()
        loss, aux = losses(model, tokens[:, :-1], tokens[:, 1:])
        (loss + AUX * aux).backward()
        fill_gradients(model)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        values.append(loss.item())
        dropped.append(take_dropped(model))
        if bias_rate > 0:
            biases.append(move_biases(model, bias_rate))
    out["steps.loss"] = torch.tensor(values, dtype=torch.float64)
    out["steps.norm"] = torch.tensor(norms, dtype=torch.float64)
    if sum(dropped) > 0:
        out["steps.dropped"] = torch.tensor(dropped, dtype=torch.int32)
    if biases:
        out["steps.bias"] = torch.stack(biases).double()


def make(golden):
    fixture = next(each for each in FIXTURES if each.name == (golden.fixture or golden.name))
    generator = torch.Generator().manual_seed(100 + fixture.seed)
    model = load(fixture, golden)
    vocab = model.config.vocab_size
    length = sum(golden.documents[0]) if golden.documents else LENGTH
    tokens = torch.randint(0, vocab, (SEQUENCES, length), generator=generator)
    labels = torch.randint(0, vocab, (SEQUENCES, length), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    with without_casts() if golden.documents else contextlib.nullcontext():
        loss, aux = losses(model, tokens, labels, golden.documents)
    (loss + AUX * aux).backward()
    fill_gradients(model)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    out = {"tokens": tokens.int(), "labels": labels.int(), "loss": loss.detach().reshape(1),
           "aux": aux.detach().reshape(1).double()}
    for key in ("capacity_factor", "bias_rate"):
        if getattr(golden, key) > 0:
            out[key] = torch.tensor([getattr(golden, key)], dtype=torch.float64)
    dropped = take_dropped(model)
    if golden.capacity_factor > 0:
        out["dropped"] = torch.tensor([dropped], dtype=torch.int32)
    for name, gradient in per_expert(fixture, gradients).items():
        out["gradient." + name] = gradient.float().contiguous()
    if golden.documents:
        out["borders"] = torch.tensor([s * length + sum(lengths[:d]) for s, lengths in enumerate(golden.documents)
                                       for d in range(1, len(lengths))], dtype=torch.int32)
        save_file(out, os.path.join(HERE, golden.name + ".safetensors"))
        print(f"{golden.name}: loss {loss.item():.6f}, aux {aux.item():.6f}")
        return
    # A few tokens only, so that there is something to learn.
    batches = torch.randint(0, 24, (STEPS, SEQUENCES, LENGTH + 1), generator=generator)
    batches[:, :, 1::2] = (batches[:, :, 0:-1:2] * 7 + 3) % 24
    out["steps.tokens"] = batches.int()
    train(load(fixture, golden), batches, golden.bias_rate, out)
    save_file(out, os.path.join(HERE, golden.name + ".safetensors"))
    values, norms = out["steps.loss"], out["steps.norm"]
    print(f"{golden.name}: loss {loss.item():.6f}, aux {aux.item():.6f}, steps {values[0]:.4f} ... {values[-1]:.4f}, "
          f"norms {norms.min():.3f} to {norms.max():.3f}, dropped {dropped}, then {out.get('steps.dropped', [])}")


if __name__ == "__main__":
    wanted = sys.argv[1:] or [each.name for each in GOLDENS]
    for each in GOLDENS:
        if each.name in wanted:
            make(each)
