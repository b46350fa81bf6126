#!/usr/bin/env python3
"""Makes what PyTorch, transformers and PEFT say of training with dropout and router jitter, on CPU in fp64.

    python3 make.py [NAME ...]             (needs torch, transformers, peft, safetensors; seconds a fixture)

Random numbers are those of workers/ops/dropout/counter_random.h, written here again in numpy; all else is transformers'
and PEFT's own: where they drop, and what.

NAME.safetensors, of ../models/NAME, and lora-NAME.safetensors, of PEFT's adapters of its attention:
  rates [5], seed                 of embedding, hidden, attention, router jitter, adapters
  steps.tokens [20, S, T], steps.loss [20], steps.norm [20]   as ../training/make.py's, with its optimizer
  rank, alpha, targets, first.PARAMETER                       of adapters: as ../adapters/make.py's
"""
import importlib.util
import os
import sys
from unittest import mock

import numpy
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("adapters", os.path.join(HERE, "..", "adapters", "make.py"))
adapters = importlib.util.module_from_spec(spec)
sys.path.remove(HERE)  # "make" is that of ../models
sys.path.insert(0, os.path.abspath(os.path.join(HERE, "..", "adapters")))  # which removes it again
spec.loader.exec_module(adapters)
from peft import LoraConfig, get_peft_model  # noqa: E402
from peft.utils import get_peft_model_state_dict  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

training = adapters.training
SEED = 0x123456789ABCDEF
EMBEDDING, ATTENTION, ATTENTION_OUT, FEED_FORWARD, ROUTER, ADAPTER = 0, 1, 2, 3, 4, 8
U = numpy.uint64

# Rates of embedding, hidden, attention, router jitter, adapters.
PLAIN = {"mixtral-window": (0, 0, 0.3, 0.2, 0), "gpt2-top2": (0.1, 0.25, 0.2, 0, 0)}
ADAPTED = {"olmoe-clip": ((0, 0, 0, 0, 0.4), 4, 8, (0, 1, 2, 3))}


def draw(key, i):
    """The i-th number of SplitMix64 of this seed; arrays."""
    with numpy.errstate(over="ignore"):
        z = numpy.asarray(key, U) + (numpy.asarray(i, U) + U(1)) * U(0x9E3779B97F4A7C15)
        z = (z ^ (z >> U(30))) * U(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> U(27))) * U(0x94D049BB133111EB)
        return z ^ (z >> U(31))


class Noise:
    """The random numbers of the present step."""
    step = 1

    def rows(self, site, layer, shape):
        """Keys [S, T] of a site's rows."""
        step = draw(draw(U(SEED ^ 0x73776974636879), 0), self.step)
        rows = draw(draw(step, numpy.arange(shape[0]))[:, None], numpy.arange(shape[1])[None])
        return draw(draw(rows, site), layer)

    def dropped(self, x, rate, site, layer):
        draws = draw(self.rows(site, layer, x.shape)[..., None], numpy.arange(x.shape[2]))
        return self.apply(x, rate, draws)

    def attention(self, p, rate, layer):
        """p: [S, N, T, T]."""
        rows = self.rows(ATTENTION, layer, (p.shape[0], p.shape[2]))
        heads = draw(rows[:, None, :], numpy.arange(p.shape[1])[None, :, None])
        return self.apply(p, rate, draw(heads[..., None], numpy.arange(p.shape[3])))

    def apply(self, x, rate, draws):
        kept = (draws >> U(32)) >= U(int(rate * 2.0**32))
        return x * torch.from_numpy(kept / (1 - rate)).to(x.dtype)

    def jitter(self, like, layer, low, high):
        draws = draw(self.rows(ROUTER, layer, like.shape)[..., None], numpy.arange(like.shape[2]))
        return torch.from_numpy(low + (high - low) * ((draws >> U(11)).astype(numpy.float64) * 2.0**-53)).to(like.dtype)


class Dropout(torch.nn.Module):
    def __init__(self, noise, rate, site, layer):
        super().__init__()
        self.noise, self.rate, self.site, self.layer = noise, rate, site, layer

    def forward(self, x):
        return self.noise.dropped(x, self.rate, self.site, self.layer)



def place(model, noise, rates):
    """Lets the model's own dropouts draw from `noise`.  Returns patches of torch's functions."""
    embedding, hidden, attention, jitter, _ = rates
    present = {"layer": None}
    layers = model.model.layers

    def enter(layer):
        return lambda *_: present.update(layer=layer)

    for layer, module in enumerate(layers):
        module.register_forward_pre_hook(enter(layer))
    if model.config.model_type == "gpt2_moe":
        layers[0].register_forward_pre_hook(
            lambda _, args: (noise.dropped(args[0], embedding, EMBEDDING, 0),) + args[1:])
        for layer, module in enumerate(layers):
            module.self_attn.attn_dropout.p = attention
            module.self_attn.resid_dropout = Dropout(noise, hidden, ATTENTION_OUT, layer)
            after = Dropout(noise, hidden, FEED_FORWARD, layer)
            module.mlp.register_forward_hook(
                lambda _, __, out, after=after: (after(out[0]), out[1]) if isinstance(out, tuple) else after(out))
    else:
        for module in layers:
            module.self_attn.attention_dropout = attention
            if jitter > 0:
                module.mlp.jitter_noise = jitter

    def dropout(x, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return x
        assert x.dim() == 4 and p == attention, (x.shape, p)
        return noise.attention(x, p, present["layer"])

    def uniform(x, low, high):
        return x.copy_(noise.jitter(x, present["layer"], low, high))

    return (mock.patch.object(torch.nn.functional, "dropout", dropout),
            mock.patch.object(torch.Tensor, "uniform_", uniform))


def train(model, noise, rates, groups, batches):
    """As ../adapters/make.py's."""
    patches = place(model, noise, rates)
    optimizer = torch.optim.AdamW(groups, lr=training.RATE, betas=training.BETAS, eps=training.EPS)
    trained = [p for group in groups for p in group["params"]]
    values, norms = [], []
    with patches[0], patches[1]:
        for step, tokens in enumerate(batches):
            noise.step = step + 1
            optimizer.zero_grad()
            loss, aux = training.losses(model, tokens[:, :-1], tokens[:, 1:])
            (loss + training.AUX * aux).backward()
            for p in trained:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            norms.append(torch.nn.utils.clip_grad_norm_(trained, training.CLIP).item())
            optimizer.step()
            values.append(loss.item())
    return {"steps.tokens": batches.int(), "steps.loss": torch.tensor(values, dtype=torch.float64),
            "steps.norm": torch.tensor(norms, dtype=torch.float64), "rates": torch.tensor(rates, dtype=torch.float64),
            "seed": torch.tensor([SEED & 0xFFFFFFFF, SEED >> 32], dtype=torch.float64)}


def save(name, out):
    save_file({key: value.contiguous() for key, value in out.items()}, os.path.join(HERE, name + ".safetensors"))
    print(f"{name}: steps {out['steps.loss'][0]:.4f} ... {out['steps.loss'][-1]:.4f}, "
          f"norms {out['steps.norm'].min():.3f} to {out['steps.norm'].max():.3f}")


def make_plain(name, rates):
    fixture = adapters.fixture_of(name)
    model = training.load(fixture, training.Golden(name))
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.DECAY},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    save(name, train(model, Noise(), rates, groups, adapters.batches_of(fixture)))


def make_adapted(name, rates, rank, alpha, targets):
    fixture, noise = adapters.fixture_of(name), Noise()
    torch.manual_seed(800 + fixture.seed)
    base = training.load(fixture, training.Golden(name))
    projections = [adapters.TARGETS[t] for t in targets]
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, lora_dropout=rates[4],
                                            target_modules=projections))
    for layer, module in enumerate(base.model.layers):
        for t in targets:
            projection = getattr(module.self_attn, adapters.TARGETS[t])
            projection.lora_dropout["default"] = Dropout(noise, rates[4], ADAPTER + t, layer)
    first = {"first." + key: value.detach().double().clone() for key, value in get_peft_model_state_dict(model).items()
             if "lora_A" in key}
    trained = [p for p in model.parameters() if p.requires_grad]
    # (Training through PEFT's wrapper, whose layers are the base's.)
    out = train(base, noise, rates, [{"params": trained, "weight_decay": training.DECAY}], adapters.batches_of(fixture))
    save("lora-" + name, out | first | {"rank": torch.tensor([rank], dtype=torch.int32),
                                        "alpha": torch.tensor([alpha], dtype=torch.float64),
                                        "targets": torch.tensor(targets, dtype=torch.int32)})


if __name__ == "__main__":
    for each, of in PLAIN.items():
        if not sys.argv[1:] or each in sys.argv:
            make_plain(each, of)
    for each, of in ADAPTED.items():
        if not sys.argv[1:] or "lora-" + each in sys.argv:
            make_adapted(each, *of)
