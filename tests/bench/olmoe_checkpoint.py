"""The benchmarks' model: OLMoE's shape with four layers (3.6 GB) or more, and random bf16 weights.

A HuggingFace checkpoint and, for llama.cpp, GGUF with the same weights.  Seeded: the same bytes each time.
Needs torch and safetensors, for GGUF also gguf.
"""
import json
from pathlib import Path

HIDDEN, EXPERT_HIDDEN, EXPERTS, TOP_K, VOCAB, HEADS, LAYERS = 2048, 1024, 64, 8, 50304, 16, 4
EOS = 50279
SEED = 7
CONTEXT = 4096


def weights(layers):
    """Yields (HF name, GGUF name, tensor); "{e}" in the HF name: one tensor per expert, stacked in dimension 0."""
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def random(*shape, std):
        return (torch.randn(shape, generator=generator) * std).to(torch.bfloat16)

    def norm():
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    unit = HIDDEN**-0.5  # keeps a row of norm-1 elements at that
    yield "model.embed_tokens.weight", "token_embd.weight", random(VOCAB, HIDDEN, std=1.0)
    for layer in range(layers):
        hf, gg = f"model.layers.{layer}.", f"blk.{layer}."
        yield hf + "input_layernorm.weight", gg + "attn_norm.weight", norm()
        for name, gguf_name in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output")):
            yield f"{hf}self_attn.{name}_proj.weight", f"{gg}{gguf_name}.weight", random(HIDDEN, HIDDEN, std=unit)
        yield hf + "self_attn.q_norm.weight", gg + "attn_q_norm.weight", norm()
        yield hf + "self_attn.k_norm.weight", gg + "attn_k_norm.weight", norm()
        yield hf + "post_attention_layernorm.weight", gg + "ffn_norm.weight", norm()
        yield hf + "mlp.gate.weight", gg + "ffn_gate_inp.weight", random(EXPERTS, HIDDEN, std=unit)
        for name, rows, columns in (("gate", EXPERT_HIDDEN, HIDDEN), ("up", EXPERT_HIDDEN, HIDDEN),
                                    ("down", HIDDEN, EXPERT_HIDDEN)):
            yield (f"{hf}mlp.experts.{{e}}.{name}_proj.weight", f"{gg}ffn_{name}_exps.weight",
                   random(EXPERTS, rows, columns, std=columns**-0.5))
    yield "model.norm.weight", "output_norm.weight", norm()
    yield "lm_head.weight", "output.weight", random(VOCAB, HIDDEN, std=unit)


def hf_config(layers):
    return {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": HIDDEN,
        "intermediate_size": EXPERT_HIDDEN, "num_experts": EXPERTS, "num_experts_per_tok": TOP_K,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "norm_topk_prob": False, "hidden_act": "silu", "clip_qkv": None,
        "max_position_embeddings": CONTEXT, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": 1,
        "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "bfloat16",
    }


def write_hf(folder, layers):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, (name, _, tensor) in enumerate(weights(layers)):
        shard = f"model-{number:05d}.safetensors"
        if "{e}" in name:
            part = {name.format(e=expert): tensor[expert].clone() for expert in range(EXPERTS)}
        else:
            part = {name: tensor}
        save_file(part, folder / shard, metadata={"format": "pt"})
        weight_map.update({key: shard for key in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(hf_config(layers), indent=1))


def write_gguf(path, layers):
    import gguf
    import torch

    writer = gguf.GGUFWriter(str(path), "olmoe")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(EXPERT_HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for _, name, tensor in weights(layers):
        if tensor.ndim > 1 and "gate_inp" not in name:
            bits = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:  # llama.cpp wants norms and routers as fp32: the same values
            writer.add_tensor(name, tensor.float().numpy(), raw_dtype=gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ensure(path, write, log):
    """Makes `path` by `write(path)` unless an earlier run finished it (a marker beside it is written last)."""
    marker = path.parent / (path.name + ".done")
    if not marker.exists():
        log(f"making {path} (some GB, some minutes) ...")
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        marker.write_text("")
    return path


def ensure_hf(cache, log, layers=LAYERS):
    return ensure(Path(cache) / f"olmoe-{layers}-layers", lambda path: write_hf(path, layers), log)


def ensure_gguf(cache, log, layers=LAYERS):
    return ensure(Path(cache) / f"olmoe-{layers}-layers.gguf", lambda path: write_gguf(path, layers), log)
