#!/usr/bin/env python3
"""Writes a training run as a HuggingFace directory: bf16 safetensors with one tensor per expert matrix, the way
Qwen3-MoE checkpoints are published, and the configs beside it; then checks it against HF's own implementation.

    python3 export.py --run /tmp/demo/run --out .

OUT must hold tokenizer.json (prepare_data.py wrote it).  Exit code 1 if HF's logits differ.
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from model import Config, Model

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def hf_names(config: Config):
    """Yields (parameter name, slice of it or None, HF name), for every tensor of the published layout."""
    yield "embedding", None, "model.embed_tokens.weight"
    yield "norm", None, "model.norm.weight"
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    f = config.moe_intermediate_size
    for i in range(config.num_hidden_layers):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        yield ours + "norm1", None, theirs + "input_layernorm.weight"
        yield ours + "norm2", None, theirs + "post_attention_layernorm.weight"
        for name in ("q_norm", "k_norm"):
            yield ours + name, None, f"{theirs}self_attn.{name}.weight"
        for name, begin, end in (("q", 0, q), ("k", q, q + kv), ("v", q + kv, q + 2 * kv)):
            yield ours + "w_qkv", slice(begin, end), f"{theirs}self_attn.{name}_proj.weight"
        yield ours + "w_o", None, theirs + "self_attn.o_proj.weight"
        yield ours + "w_router", None, theirs + "mlp.gate.weight"
        for e in range(config.num_experts):
            expert = f"{theirs}mlp.experts.{e}."
            yield ours + "w_gate_up", (e, slice(0, f)), expert + "gate_proj.weight"
            yield ours + "w_gate_up", (e, slice(f, 2 * f)), expert + "up_proj.weight"
            yield ours + "w_down", e, expert + "down_proj.weight"


def hf_config(config: Config) -> dict:
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **config.to_dict(),
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0,
        "decoder_sparse_step": 1, "hidden_act": "silu", "initializer_range": 0.02,
        "intermediate_size": 2 * config.moe_intermediate_size, "mlp_only_layers": [], "norm_topk_prob": True,
        "output_router_logits": False, "rope_scaling": None, "router_aux_loss_coef": 0.01, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": config.num_hidden_layers, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True}


def tokenizer_config(config: Config) -> dict:
    def added(content: str) -> dict:
        return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                "special": True}
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "errors": "replace", "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(i): added(name) for i, name in enumerate(names)},
        "additional_special_tokens": names[1:], "chat_template": CHAT_TEMPLATE,
        "model_max_length": config.max_position_embeddings, "tokenizer_class": "PreTrainedTokenizerFast"}


def write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(checkpoint: pathlib.Path, out: pathlib.Path) -> dict:
    """Writes the directory's files; returns the run's progress."""
    saved = torch.load(checkpoint)
    config = Config(**saved["config"])
    tensors = {}
    for ours, part, theirs in hf_names(config):
        tensor = saved["model"][ours]
        tensors[theirs] = (tensor if part is None else tensor[part]).to(torch.bfloat16).contiguous().clone()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    write_json(out / "config.json", hf_config(config))
    write_json(out / "tokenizer_config.json", tokenizer_config(config))
    write_json(out / "generation_config.json", {
        "bos_token_id": 0, "do_sample": True, "eos_token_id": [2, 0], "pad_token_id": 0, "temperature": 0.8,
        "top_p": 0.95, "transformers_version": "4.51.0"})
    return saved["progress"]


def load_exported(directory: pathlib.Path, dtype=torch.bfloat16) -> Model:
    """The training model with an exported directory's weights, computing in `dtype`."""
    fields = json.loads((directory / "config.json").read_text())
    config = Config(**{name: fields[name] for name in Config().to_dict()})
    model, tensors = Model(config, dtype), load_file(directory / "model.safetensors")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for ours, part, theirs in hf_names(config):
            target = parameters[ours].data
            (target if part is None else target[part]).copy_(tensors.pop(theirs))
    if tensors:
        raise ValueError(f"{directory}: tensors of no parameter: {sorted(tensors)[:3]}")
    return model.eval()


def difference_from_hf(directory: pathlib.Path) -> float:
    """Largest |ours - HF's| / largest |HF's| over fp32 logits of 2 x 200 tokens of code and its own config text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = pathlib.Path(__file__).read_text()
    ids = torch.tensor(tokenizer(text)["input_ids"][:400]).view(2, 200)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(ids).logits
    ours = load_exported(directory, torch.float32).logits(ids)[0]
    return ((ours - expected).abs().max() / expected.abs().max()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=pathlib.Path, required=True, help="what train.py wrote")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    print("trained:", export(args.run / "checkpoint.pt", args.out))
    difference = difference_from_hf(args.out)
    print(f"largest difference from HF's logits, relative to the largest logit: {difference:.2e}")
    raise SystemExit(0 if difference < 1e-4 else 1)


if __name__ == "__main__":
    main()
