#!/usr/bin/env python3
"""Makes the tiny checkpoints of fixtures.py and their goldens with HuggingFace transformers on CPU.

    python3 make.py [NAME ...]             (needs torch, transformers, safetensors; about a minute a fixture)
    python3 make.py --bf16 [NAME ...]      keeps checkpoints and other goldens, makes what is about bf16 again
    python3 make.py --experts [NAME ...]   keeps all but steady.experts, makes that again

Each directory is a checkpoint as it is found in the wild plus goldens.safetensors:
  logits.{i}.tokens [S] and logits.{i}.values [S, V]   full logits, fp32, of a few prompts
  logits.{i}.bf16 [S]                                  how far transformers' own bf16 is from them at each position:
                                                       largest difference / largest of all values
  steady.tokens [S] and steady.values [S, V]           the same of a prompt of STEADY_LENGTH that bf16 has to match
  steady.experts [S, L, K]                             which experts its tokens go to, by MoE layer, best first
  greedy.{i}.prompt [S] and greedy.{i}.tokens [64]     greedy continuations
Weights are wide (logits spread by about ten) and lie on a coarse grid, so that they compress.  Prompts are chosen from
random candidates so that a comparison can be exact: the best two logits of every greedy step differ by MIN_GAP, at least
MIN_DISTINCT tokens are different, and no router decision is closer than MIN_MARGIN (MIN_MARGIN_LOGITS for the prompts
that bf16 has to match, too: a closer one may fall the other way there, and then another expert answers).
"""
import copy
import os
import re
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

import gpt2_moe
import gpt_oss
from files import write_config, write_weights
from fixtures import COMMON, FIXTURES

HERE = os.path.dirname(os.path.abspath(__file__))
GREEDY_LENGTHS = [1, 6, 7, 8, 15, 16, 17, 33, 48, 511, 513]
GREEDY_TOKENS = 64
STEADY_LENGTH = 40
LOGITS_LENGTHS = [5, 9, 12, 40]
BF16_LENGTHS = 12          # prompts up to this length must have wide router margins
MIN_GAP, MIN_DISTINCT, MIN_MARGIN, MIN_MARGIN_LOGITS, MAX_BF16_ERROR = 2e-3, 16, 1e-4, 0.1, 1e-2
GRID = 8
TIED_STD = 0.25


def grid_normal(shape, std, generator):
    """Normal values, rounded to multiples of std / GRID."""
    return (torch.randn(shape, generator=generator) * GRID).round() * (std / GRID)


def fill(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        fan_in = p.shape[0 if ".c_" in name else -1]
        own = gpt_oss.fill(name, p, model.config, generator, grid_normal)
        if own is not None:
            value = own
        elif "norm" in name and not name.endswith("bias"):
            value = 1.0 + grid_normal(p.shape, 0.25, generator)
            if "q_norm" in name or "k_norm" in name:
                value = value * 1.25
            if name == "model.norm.weight" and model.config.tie_word_embeddings:
                value = value * (8.0 / fan_in**0.5 / TIED_STD)
        elif "bias" in name:
            value = grid_normal(p.shape, 0.5, generator)
        elif "lm_head" in name:
            value = grid_normal(p.shape, 8.0 / fan_in**0.5, generator)
        elif "embed_positions" in name:
            value = grid_normal(p.shape, 1.0, generator)
        elif "embed" in name:
            # Small where it is tied: a token's own embedding must not decide what follows it.
            value = grid_normal(p.shape, TIED_STD if model.config.tie_word_embeddings else 1.0, generator)
        elif "mlp.gate.weight" in name:
            value = grid_normal(p.shape, 3.0 / fan_in**0.5, generator)
        elif "q_proj" in name or "k_proj" in name:
            value = grid_normal(p.shape, 1.5 / fan_in**0.5, generator)
        else:
            value = grid_normal(p.shape, 1.25 / fan_in**0.5, generator)
        # Every dtype of the files must hold the value exactly, so that all of them have the same goldens.
        value = value.to(torch.bfloat16).to(torch.float32)
        p.data.copy_(value.to(torch.float16).to(torch.float32))
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            value = grid_normal(buffer.shape, 0.125, generator)
            buffer.copy_(value.to(torch.bfloat16).to(torch.float16).to(torch.float32))


def make_model(fixture):
    if fixture.model_type == "gpt2_moe":
        return gpt2_moe.Gpt2MoeForCausalLM(dict(COMMON, **fixture.config)).float().eval()
    return AutoModelForCausalLM.from_config(make_config(fixture)).float().eval()


def load_model(fixture, dtype):
    path = os.path.join(HERE, fixture.name)
    if fixture.model_type == "gpt2_moe":
        return gpt2_moe.load(path, dtype)
    # (MXFP4 is dequantized to bf16 whatever the dtype, which all values of the fixture fit.)
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").to(dtype).eval()


def make_config(fixture):
    settings = dict(COMMON, **fixture.config)
    rope = settings.pop("rope", {"rope_type": "default"})
    theta = settings.pop("rope_theta")
    config = AutoConfig.for_model(fixture.model_type, **settings, rope_parameters=dict(rope, rope_theta=theta))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def router_scores(module, args):
    """What a router's experts are chosen by."""
    logits = args[0].reshape(-1, args[0].shape[-1]) @ module.weight.t()
    if gpt_oss.is_router(module):
        logits = logits + module.bias
    # (A probability moves by a quarter of what its logit does, at most.)
    return 4 * gpt2_moe.scores(module, logits) if hasattr(module, "e_score_correction_bias") else logits


class RouterMargins:
    """Smallest distance between the last chosen and the first rejected router logit, per sequence of the batch."""

    def __init__(self, model):
        self.top_k = model.config.num_experts_per_tok
        self.handles = [m.register_forward_hook(self.hook) for n, m in model.named_modules()
                        if re.fullmatch(r"model\.layers\.\d+\.mlp\.(gate|router)", n)]
        self.reset(1)

    def reset(self, batch):
        self.batch = batch
        self.smallest = torch.full((batch,), float("inf"))

    def hook(self, module, args, output):
        best = router_scores(module, args).sort(dim=-1, descending=True).values
        margin = (best[:, self.top_k - 1] - best[:, self.top_k]).reshape(self.batch, -1).min(dim=1).values
        self.smallest = torch.minimum(self.smallest, margin)

    def remove(self):
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def greedy(model, margins, prompts):
    margins.reset(prompts.shape[0])
    out = model(prompts, use_cache=True)
    tokens, gap = [], torch.full((prompts.shape[0],), float("inf"))
    for _ in range(GREEDY_TOKENS):
        best = out.logits[:, -1].topk(2, dim=-1)
        gap = torch.minimum(gap, best.values[:, 0] - best.values[:, 1])
        tokens.append(best.indices[:, :1])
        out = model(tokens[-1], past_key_values=out.past_key_values, use_cache=True)
    tokens = torch.cat(tokens, dim=1)
    distinct = torch.tensor([len(set(t.tolist())) for t in tokens])
    good = (gap >= MIN_GAP) & (distinct >= MIN_DISTINCT) & (margins.smallest >= MIN_MARGIN)
    return tokens, good


def in_bf16(model):
    half = copy.deepcopy(model).bfloat16()
    if hasattr(model.model, "rotary_emb"):
        half.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)  # its frequencies stay fp32
    return half


@torch.no_grad()
def bf16_distances(half, tokens, values):
    """[S]: of each position the largest difference, relative to the largest of all values."""
    return (half(tokens[None].long()).logits[0].float() - values).abs().amax(dim=1) / values.abs().max()


@torch.no_grad()
def steady_prompt(model, margins, generator):
    """Token by token, the first of random candidates at which no router is undecided.  Nothing else is chosen."""
    prompt = torch.zeros(0, dtype=torch.long)
    while len(prompt) < STEADY_LENGTH:
        candidates = torch.randint(0, model.config.vocab_size, (64, 1), generator=generator)
        rows = torch.cat([prompt.expand(len(candidates), -1), candidates], dim=1)
        margins.reset(len(rows))
        model(rows)
        good = (margins.smallest >= MIN_MARGIN_LOGITS).nonzero()
        prompt = rows[int(good[0])] if len(good) else prompt[:-1]
    return prompt


@torch.no_grad()
def add_expert_goldens(model, goldens):
    chosen = []

    def hook(module, args, output):
        chosen.append(router_scores(module, args).topk(model.config.num_experts_per_tok, dim=-1).indices)

    handles = [m.register_forward_hook(hook) for n, m in model.named_modules()
               if re.fullmatch(r"model\.layers\.\d+\.mlp\.(gate|router)", n)]
    model(goldens["steady.tokens"][None].long())
    for handle in handles:
        handle.remove()
    goldens["steady.experts"] = torch.stack(chosen, dim=1).to(torch.int32)


@torch.no_grad()
def add_bf16_goldens(model, goldens):
    half, margins = in_bf16(model), RouterMargins(model)
    prompt = steady_prompt(model, margins, torch.Generator().manual_seed(2000))
    margins.remove()
    goldens["steady.tokens"] = prompt.to(torch.int32)
    goldens["steady.values"] = model(prompt[None]).logits[0].clone()
    add_expert_goldens(model, goldens)
    names = [k[:-len(".tokens")] for k in goldens if k.endswith(".tokens") and not k.startswith("greedy")]
    for name in sorted(names):
        distances = bf16_distances(half, goldens[f"{name}.tokens"], goldens[f"{name}.values"])
        goldens[f"{name}.bf16"] = distances
        print(f"  bf16, {name} of {len(distances)}: largest {distances.max():.1e}, median {distances.median():.1e}, "
              f"{int((distances > 2e-2).sum())} above 2e-2", flush=True)


@torch.no_grad()
def make_goldens(fixture, model, seed):
    generator = torch.Generator().manual_seed(seed + 1000)
    vocab = model.config.vocab_size
    half = in_bf16(model)
    margins = RouterMargins(model)
    goldens = {}
    found = 0
    for length in [*GREEDY_LENGTHS, *fixture.greedy_lengths]:
        tries = 6 if length > 100 else 24
        for _ in range(10):
            prompts = torch.randint(0, vocab, (tries, length), generator=generator)
            tokens, good = greedy(model, margins, prompts)
            if good.any():
                i = int(good.nonzero()[0])
                goldens[f"greedy.{found}.prompt"] = prompts[i].to(torch.int32).clone()
                goldens[f"greedy.{found}.tokens"] = tokens[i].to(torch.int32).clone()
                found += 1
                break
        else:
            print(f"  no greedy prompt of length {length}", flush=True)
    if found < 8:
        return None
    for i, length in enumerate([*LOGITS_LENGTHS, *fixture.logits_lengths]):
        for _ in range(60):
            prompts = torch.randint(0, vocab, (256, length), generator=generator)
            margins.reset(len(prompts))
            logits = model(prompts).logits
            if length > BF16_LENGTHS:
                good = margins.smallest >= MIN_MARGIN
                error = torch.zeros(len(prompts))
            else:
                good = margins.smallest >= MIN_MARGIN_LOGITS
                error = (half(prompts).logits.float() - logits).abs().amax(dim=(1, 2)) / logits.abs().amax(dim=(1, 2))
                good &= error <= MAX_BF16_ERROR
            if good.any():
                best = int(torch.where(good, error, torch.inf).argmin())
                break
        else:
            print(f"  no logits prompt of length {length}", flush=True)
            return None
        goldens[f"logits.{i}.tokens"] = prompts[best].to(torch.int32).clone()
        goldens[f"logits.{i}.values"] = logits[best].clone()
    margins.remove()
    return goldens


@torch.no_grad()
def report(fixture, goldens):
    """The directory as transformers itself loads it must give the goldens; also what bf16 costs there,
    and its own generate must give the greedy tokens."""
    path = os.path.join(HERE, fixture.name)
    for dtype in (torch.float32, torch.bfloat16):
        model = load_model(fixture, dtype)
        worst = {}
        for name in [k[:-len(".values")] for k in goldens if k.endswith(".values")]:
            values = goldens[f"{name}.values"]
            again = model(goldens[f"{name}.tokens"][None].long()).logits[0].float()
            worst[name] = float((again - values).abs().max() / values.abs().max())
        print("  reloaded as", dtype, {k: f"{v:.1e}" for k, v in worst.items()}, flush=True)
        if dtype == torch.bfloat16:
            continue
        if max(worst.values()) > 1e-5:
            sys.exit(f"{path}: transformers reads the directory differently")
        if fixture.model_type == "gpt2_moe":
            continue  # it has no generate of its own
        model.generation_config = GenerationConfig()
        for name in [k[:-len(".prompt")] for k in goldens if k.endswith(".prompt")]:
            prompt = goldens[f"{name}.prompt"][None].long()
            whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=GREEDY_TOKENS,
                                   do_sample=False)
            if whole[0, prompt.shape[1]:].tolist() != goldens[f"{name}.tokens"].tolist():
                sys.exit(f"{path}: generate gives other tokens for {name}, a prompt of {prompt.shape[1]}")


def save_goldens(path, goldens):
    save_file({k: v.contiguous() for k, v in goldens.items()}, os.path.join(path, "goldens.safetensors"))


def remake(fixture, add):
    path = os.path.join(HERE, fixture.name)
    goldens = load_file(os.path.join(path, "goldens.safetensors"))
    add(load_model(fixture, torch.float32), goldens)
    save_goldens(path, goldens)
    report(fixture, goldens)


def main():
    torch.set_num_threads(1)
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")]
    for fixture in FIXTURES:
        if wanted and fixture.name not in wanted:
            continue
        print(fixture.name, flush=True)
        if "--bf16" in sys.argv:
            remake(fixture, add_bf16_goldens)
            continue
        if "--experts" in sys.argv:
            remake(fixture, add_expert_goldens)
            continue
        for seed in range(fixture.seed, fixture.seed + 20):
            model = make_model(fixture)
            fill(model, seed)
            goldens = make_goldens(fixture, model, seed)
            if goldens is not None:
                break
            print(f"  seed {seed} has too few prompts", flush=True)
        else:
            sys.exit(f"{fixture.name}: no seed works")
        path = os.path.join(HERE, fixture.name)
        os.makedirs(path, exist_ok=True)
        config = model.config
        config.architectures = [type(model).__name__]
        write_config(fixture, config, path)
        write_weights(fixture, model, path)
        add_bf16_goldens(model, goldens)
        save_goldens(path, goldens)
        print(f"  seed {seed}:", sum(k.endswith(".prompt") for k in goldens), "greedy prompts,",
              sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path)) // 1024, "KB", flush=True)
        report(fixture, goldens)


if __name__ == "__main__":
    main()
