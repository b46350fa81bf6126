"""Writes the directories of fixtures.py: config.json and weights in the spellings in which they are published."""
import json
import os

import torch
from safetensors.torch import save_file

import gpt2_moe
import gpt_oss
from fixtures import COMMON


def write_config(fixture, config, path):
    settings = dict(COMMON, **fixture.config)
    rope = settings.pop("rope", None)
    theta = settings.pop("rope_theta", None)
    out = {"architectures": [config.architectures[0]], "model_type": fixture.model_type, **settings}
    if fixture.config_style == "v5":
        out["dtype"] = fixture.dtype
        out["rope_parameters"] = dict(rope or {"rope_type": "default"}, rope_theta=theta)
        if fixture.experts == "mxfp4":
            out["quantization_config"] = gpt_oss.QUANTIZATION
        if fixture.model_type in ("qwen2_moe", "gpt_oss"):
            out["layer_types"] = config.layer_types
        out["transformers_version"] = "5.0.0"
    elif fixture.model_type == "gpt2_moe":
        out["dtype"] = fixture.dtype
    else:
        out["torch_dtype"] = fixture.dtype
        out["rope_theta"] = theta
        out["rope_scaling"] = rope
        out["transformers_version"] = "4.51.0"
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(out, f, indent=2)
        f.write("\n")
    with open(os.path.join(path, "generation_config.json"), "w") as f:
        json.dump({"eos_token_id": [2, 3], "do_sample": True}, f)
        f.write("\n")


def per_expert(fixture, state):
    """The published names: one tensor per expert, and Mixtral's own for its MoE block."""
    if fixture.model_type == "gpt2_moe":
        return gpt2_moe.published(state)
    out = {}
    mixtral = fixture.model_type == "mixtral"
    for name, value in state.items():
        block = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        stem = block[:block.rfind(".")]
        if name.endswith("experts.gate_up_proj"):
            for e in range(value.shape[0]):
                gate, up = value[e].chunk(2)
                out[f"{stem}.{e}.{'w1' if mixtral else 'gate_proj'}.weight"] = gate.contiguous()
                out[f"{stem}.{e}.{'w3' if mixtral else 'up_proj'}.weight"] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            for e in range(value.shape[0]):
                out[f"{stem}.{e}.{'w2' if mixtral else 'down_proj'}.weight"] = value[e].contiguous()
        else:
            out[block] = value
    return out


def write_weights(fixture, model, path):
    dtype = getattr(torch, fixture.dtype)
    state = {k: v.detach().to(torch.float32 if k.endswith("e_score_correction_bias") else dtype).contiguous()
             for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if fixture.experts == "each":
        state = per_expert(fixture, state)
    if fixture.experts == "mxfp4":
        state = gpt_oss.published(state)
    if fixture.shards == 1:
        save_file(state, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
        return
    names = sorted(state)
    weight_map = {}
    for s in range(fixture.shards):
        # gpt-oss counts its files from 0.
        first = 0 if fixture.model_type == "gpt_oss" else 1
        file = f"model-{s + first:05d}-of-{fixture.shards:05d}.safetensors"
        part = {n: state[n] for i, n in enumerate(names) if i % fixture.shards == s}
        save_file(part, os.path.join(path, file), metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(v.numel() * v.element_size() for v in state.values())
    with open(os.path.join(path, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, f, indent=0)
        f.write("\n")
