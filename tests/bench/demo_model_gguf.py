"""The demo model as GGUF, for llama.cpp: the same weights, bf16 and fp32, without a tokenizer.  Needs torch, safetensors and gguf."""
import json

import report

FOLDER = report.ROOT / "deploy/demo-model"
VOCAB = json.loads((FOLDER / "config.json").read_text())["vocab_size"]
ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def tensors(config):
    """Yields (name, tensor)."""
    import torch
    from safetensors import safe_open

    files = [safe_open(path, "pt") for path in sorted(FOLDER.glob("*.safetensors"))]
    names = {name: file for file in files for name in file.keys()}

    def read(name):
        return names[name].get_tensor(name)

    yield "token_embd.weight", read("model.embed_tokens.weight")
    yield "output_norm.weight", read("model.norm.weight")
    for layer in range(config["num_hidden_layers"]):
        hf, gg = f"model.layers.{layer}.", f"blk.{layer}."
        yield gg + "attn_norm.weight", read(hf + "input_layernorm.weight")
        yield gg + "ffn_norm.weight", read(hf + "post_attention_layernorm.weight")
        yield gg + "ffn_gate_inp.weight", read(hf + "mlp.gate.weight")
        for name, gguf_name in ATTENTION.items():
            yield f"{gg}{gguf_name}.weight", read(f"{hf}self_attn.{name}.weight")
        for name, gguf_name in EXPERTS.items():
            yield f"{gg}{gguf_name}.weight", torch.stack([read(f"{hf}mlp.experts.{e}.{name}.weight") for e in range(config["num_experts"])])


def write(path):
    import gguf
    import torch

    config = json.loads((FOLDER / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, tensor in tensors(config):
        if tensor.ndim > 1 and "gate_inp" not in name:
            writer.add_tensor(name, tensor.contiguous().view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, tensor.float().numpy(), raw_dtype=gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
