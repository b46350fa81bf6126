#!/usr/bin/env python3
"""Makes what PyTorch, transformers and PEFT say of trained parts of checkpoints of ../models, on CPU in fp64.

    python3 make.py [NAME ...]             (needs torch, transformers, peft, safetensors; seconds a fixture)

lora-NAME.safetensors, PEFT's adapters of the attention of ../models/NAME, experts-NAME.safetensors, of its experts, too:
  rank, alpha, targets            the adapters; targets: indices into TARGETS + PARAMETERS
  first.PARAMETER                 PEFT's initial lora_A, by PEFT's names (lora_B is 0)
  last.PARAMETER                  lora_A and lora_B after the steps
  logits                          of the first batch's first sequence, [T, V], after the steps
  greedy.{i}.prompt, greedy.{i}.tokens     greedy continuations, after the steps; the best two logits differ by MIN_GAP
lora-NAME/, experts-NAME/         the same adapters as PEFT saves them, in fp32
other-NAME/                       a second adapter of the same model, drawn, not trained (OTHERS)
beside-NAME.safetensors, PEFT with both loaded, of which one or none is active:
  {base,lora,other}.{i}.prompt, {base,lora,other}.{i}.tokens    greedy continuations of the same prompts, as above
rules-NAME.safetensors, some weights frozen and others with rates of their own (RULES):
  last.PARAMETER                  some weights after the steps
lora-NAME and rules-NAME:
  steps.tokens [20, S, T], steps.loss [20], steps.norm [20]   as ../training/make.py's, with its optimizer
"""
import fnmatch
import importlib.util
import os
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("training", os.path.join(HERE, "..", "training", "make.py"))
training = importlib.util.module_from_spec(spec)
sys.path.remove(HERE)  # training's own "make" is that of ../models
sys.modules["training"] = training
spec.loader.exec_module(training)
from training import AUX, BETAS, CLIP, DECAY, EPS, FIXTURES, LENGTH, RATE, SEQUENCES, STEPS  # noqa: E402

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
PARAMETERS = ("gate_up_proj", "down_proj")
# Fixture, rank, alpha, targets.
ADAPTERS = (("olmoe-clip", 4, 8, (0, 1, 2, 3)), ("qwen2-shared", 3, 3, (0, 2)), ("mixtral-window", 8, 4, (1, 3)))
# Fixture, rank, alpha, targets, whether its scale is alpha / sqrt(rank), size of B's elements.
OTHERS = (("olmoe-clip", 6, 3, (0, 3), True, 0.4), ("qwen2-shared", 5, 5, (1, 2, 3), False, 0.4))
BESIDE_PROMPTS, BESIDE_GREEDY = (3, 20, 40), 20
EXPERTS = (("olmoe-clip", 4, 8, (0, 4, 5)), ("qwen2-shared", 3, 3, (4, 5)), ("mixtral-window", 2, 4, (2, 5)))
# Pattern, frozen, rate, weight decay.  The first that fits holds.
RULES = (("model.embed_tokens.weight", True, 1, None), ("*.self_attn.k_proj.*", True, 1, None),
         ("*.experts.*", True, 1, None), ("*.gate.weight", False, 0.1, None), ("*.self_attn.*", False, 3, 0.5),
         ("*norm*", False, 0.5, 0.05))
PROMPTS = (1, 7, 19)
GREEDY, MIN_GAP, MIN_DISTINCT = 24, 5e-3, 5
RULED = ("olmoe-clip", "qwen2-shared")


def batches_of(fixture):
    generator = torch.Generator().manual_seed(500 + fixture.seed)
    batches = torch.randint(0, 24, (STEPS, SEQUENCES, LENGTH + 1), generator=generator)
    batches[:, :, 1::2] = (batches[:, :, 0:-1:2] * 7 + 3) % 24
    return batches


def train(model, groups, batches):
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)
    trained = [p for group in groups for p in group["params"]]
    values, norms = [], []
    for tokens in batches:
        optimizer.zero_grad()
        loss, aux = training.losses(model, tokens[:, :-1], tokens[:, 1:])
        (loss + AUX * aux).backward()
        for p in trained:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norms.append(torch.nn.utils.clip_grad_norm_(trained, CLIP).item())
        optimizer.step()
        values.append(loss.item())
    return {"steps.tokens": batches.int(), "steps.loss": torch.tensor(values, dtype=torch.float64),
            "steps.norm": torch.tensor(norms, dtype=torch.float64)}


def save(name, out):
    save_file({key: value.contiguous() for key, value in out.items()}, os.path.join(HERE, name + ".safetensors"))
    print(f"{name}: steps {out['steps.loss'][0]:.4f} ... {out['steps.loss'][-1]:.4f}, "
          f"norms {out['steps.norm'].min():.3f} to {out['steps.norm'].max():.3f}")


def fixture_of(name):
    return next(each for each in FIXTURES if each.name == name)


@torch.no_grad()
def greedy(model, prompt, count=GREEDY):
    """Tokens, and the least gap between the best two logits; ends with the first gap below MIN_GAP."""
    tokens, gap = prompt.tolist(), float("inf")
    for _ in range(count):
        best = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
        if gap < MIN_GAP:
            break
    return tokens[len(prompt):], gap


def add_greedy(model, generator, out):
    for i, length in enumerate(PROMPTS):
        tokens, gap = [], 0.0
        while gap < MIN_GAP or len(set(tokens)) < MIN_DISTINCT:
            prompt = torch.randint(4, model.config.vocab_size, (length,), generator=generator)
            tokens, gap = greedy(model, prompt)
        out[f"greedy.{i}.prompt"] = prompt.int()
        out[f"greedy.{i}.tokens"] = torch.tensor(tokens, dtype=torch.int32)


def make_adapters(to, name, rank, alpha, targets):
    fixture = fixture_of(name)
    torch.manual_seed(700 + fixture.seed)
    base = training.load(fixture, training.Golden(name))
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha,
                                            target_modules=[TARGETS[t] for t in targets if t < len(TARGETS)],
                                            target_parameters=[PARAMETERS[t - len(TARGETS)] for t in targets
                                                               if t >= len(TARGETS)] or None))
    state = lambda: {key: value.detach().clone() for key, value in get_peft_model_state_dict(model).items()}
    out = {"rank": torch.tensor([rank], dtype=torch.int32), "alpha": torch.tensor([alpha], dtype=torch.float64),
           "targets": torch.tensor(targets, dtype=torch.int32)}
    out |= {"first." + key: value.double() for key, value in state().items() if "lora_A" in key}
    batches = batches_of(fixture)
    trained = [p for p in model.parameters() if p.requires_grad]
    out |= train(model, [{"params": trained, "weight_decay": DECAY}], batches)
    out |= {"last." + key: value.float() for key, value in state().items()}
    with torch.no_grad():
        out["logits"] = model(batches[0, :1, :-1], use_cache=False).logits[0].float()
    model.eval()
    add_greedy(model, torch.Generator().manual_seed(900 + fixture.seed), out)
    save(to, out)
    save_adapter(base, model, os.path.join(HERE, to))


def save_adapter(base, model, folder):
    name = os.path.basename(folder).split("-", 1)[1]
    base.config._name_or_path = base.name_or_path = model.peft_config["default"].base_model_name_or_path = name
    model.float().save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))


def make_other(name, rank, alpha, targets, stabilized, size):
    fixture = fixture_of(name)
    torch.manual_seed(1100 + fixture.seed)
    base = training.load(fixture, training.Golden(name))
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, use_rslora=stabilized,
                                            target_modules=[TARGETS[t] for t in targets]))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_B" in key:
                p.copy_(size * torch.randn(p.shape, dtype=p.dtype))
    save_adapter(base, model, os.path.join(HERE, "other-" + name))


@torch.no_grad()
def make_beside(name):
    fixture = fixture_of(name)
    base = training.load(fixture, training.Golden(name)).eval()
    model = PeftModel.from_pretrained(base, os.path.join(HERE, "lora-" + name), adapter_name="lora")
    model.load_adapter(os.path.join(HERE, "other-" + name), adapter_name="other")
    model = model.double().eval()
    generator = torch.Generator().manual_seed(1300 + fixture.seed)
    out = {}
    for i, length in enumerate(BESIDE_PROMPTS):
        found, gap = {}, 0.0
        while gap < MIN_GAP or len({tuple(tokens) for tokens in found.values()}) < 3:
            prompt = torch.randint(4, base.config.vocab_size, (length,), generator=generator)
            found, gap = {}, float("inf")
            for adapter in ("lora", "other", "base"):
                if adapter == "base":
                    with model.disable_adapter():
                        found[adapter], least = greedy(model, prompt, BESIDE_GREEDY)
                else:
                    model.set_adapter(adapter)
                    found[adapter], least = greedy(model, prompt, BESIDE_GREEDY)
                gap = min(gap, least)
                if gap < MIN_GAP:
                    break
        for key, tokens in found.items():
            out[f"{key}.{i}.prompt"] = prompt.int()
            out[f"{key}.{i}.tokens"] = torch.tensor(tokens, dtype=torch.int32)
    save_file(out, os.path.join(HERE, f"beside-{name}.safetensors"))
    print(f"beside-{name}: " + ", ".join(f"{key} {value[:6].tolist()}" for key, value in out.items() if "tokens" in key))


def rule_of(name):
    return next((rule for rule in RULES if fnmatch.fnmatchcase(name, rule[0])), (None, False, 1, None))


def make_rules(name):
    fixture = fixture_of(name)
    model = training.load(fixture, training.Golden(name))
    groups = []
    for key, p in model.named_parameters():
        _, frozen, rate, decay = rule_of(key)
        p.requires_grad = not frozen
        if decay is None:
            decay = DECAY if p.dim() >= 2 else 0.0
        if not frozen:
            groups.append({"params": [p], "lr": RATE * rate, "weight_decay": decay})
    out = train(model, groups, batches_of(fixture))
    for key, p in model.named_parameters():
        if rule_of(key)[0] is not None and not rule_of(key)[1] and "layers.1." in key:
            out["last." + key] = p.detach().float()
    save("rules-" + name, out)


if __name__ == "__main__":
    for kind, all_of_kind in (("lora-", ADAPTERS), ("experts-", EXPERTS)):
        for each in all_of_kind:
            if not sys.argv[1:] or kind + each[0] in sys.argv:
                make_adapters(kind + each[0], *each)
    for each in OTHERS:
        if not sys.argv[1:] or "other-" + each[0] in sys.argv:
            make_other(*each)
        if not sys.argv[1:] or "beside-" + each[0] in sys.argv:
            make_beside(each[0])
    for each in RULED:
        if not sys.argv[1:] or "rules-" + each in sys.argv:
            make_rules(each)
