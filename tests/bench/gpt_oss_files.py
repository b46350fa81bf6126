"""Checkpoints of gpt-oss-20b's shape with random weights, written with numpy alone: safetensors as published, dequantized, or
one GGUF file."""
import dataclasses
import json
import struct

import numpy as np

FORMS = ("published", "gguf", "plain")
GROUP = 32
POOL = 1 << 22  # bytes of random values, which tensors repeat from places of their own


@dataclasses.dataclass
class Shape:
    layers: int = 24
    hidden: int = 2880
    width: int = 2880
    experts: int = 32
    top_k: int = 4
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 64
    vocab: int = 201_088


class Values:
    """Random values as bytes, a part of a tensor at a time."""

    def __init__(self, seed=1):
        self._rng = np.random.default_rng(seed)
        normal = self._rng.standard_normal(POOL // 2).astype(np.float32) * 0.02
        self._pools = {
            "BF16": (normal.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
            "F32": normal[:POOL // 4].view(np.uint8),
            "codes": self._rng.integers(0, 256, POOL, np.uint8),
            "exponents": self._rng.integers(116, 121, POOL, np.uint8),  # 2^-11 … 2^-7
        }
        blocks = self._rng.integers(0, 256, (POOL // 17, 17), np.uint8)
        blocks[:, 0] = self._rng.integers(116, 121, len(blocks), np.uint8)
        self._pools["MXFP4"] = blocks.reshape(-1)

    def parts(self, kind, size):
        pool = self._pools[kind]
        while size > 0:
            step = 17 if kind == "MXFP4" else 4
            begin = int(self._rng.integers(0, 1000)) * step
            part = pool[begin:begin + size]
            yield part
            size -= len(part)


def config_of(shape):
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": shape.vocab, "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "intermediate_size": shape.width, "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.top_k, "sliding_window": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "attention_bias": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 150_000,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                         "original_max_position_embeddings": 4096},
        "eos_token_id": shape.vocab - 1,
    }


def attention(shape):
    """(name, GGUF's name, [rows, columns]) of a block's matrices."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [("q_proj", "attn_q", [q, shape.hidden]), ("k_proj", "attn_k", [kv, shape.hidden]), ("v_proj", "attn_v", [kv, shape.hidden]),
            ("o_proj", "attn_output", [shape.hidden, q])]


def safetensors_of(shape, quantized):
    """(name, dtype, shape, kind of values) of each tensor."""
    e, h, f, groups = shape.experts, shape.hidden, shape.width, shape.hidden // GROUP
    yield "model.embed_tokens.weight", "BF16", [shape.vocab, h], "BF16"
    yield "lm_head.weight", "BF16", [shape.vocab, h], "BF16"
    yield "model.norm.weight", "BF16", [h], "BF16"
    for i in range(shape.layers):
        layer = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", "BF16", [h], "BF16"
        for name, _, dims in attention(shape):
            yield f"{layer}self_attn.{name}.weight", "BF16", dims, "BF16"
            yield f"{layer}self_attn.{name}.bias", "BF16", dims[:1], "BF16"
        yield f"{layer}self_attn.sinks", "BF16", [shape.heads], "BF16"
        yield f"{layer}mlp.router.weight", "BF16", [e, h], "BF16"
        yield f"{layer}mlp.router.bias", "BF16", [e], "BF16"
        for name, rows in (("gate_up_proj", 2 * f), ("down_proj", h)):
            whole = f"{layer}mlp.experts.{name}"
            if quantized:
                yield f"{whole}_blocks", "U8", [e, rows, groups, 16], "codes"
                yield f"{whole}_scales", "U8", [e, rows, groups], "exponents"
            else:
                yield whole, "BF16", [e, h, rows], "BF16"
            yield f"{whole}_bias", "BF16", [e, rows], "BF16"


def write_safetensors(path, shape, quantized):
    tensors, header, at = list(safetensors_of(shape, quantized)), {}, 0
    for name, dtype, dims, _ in tensors:
        size = int(np.prod(dims)) * {"BF16": 2, "U8": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = Values()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, _, _, kind in tensors:
            begin, end = header[name]["data_offsets"]
            for part in values.parts(kind, end - begin):
                file.write(part.data)


def gguf_tensors(shape):
    """(name, dims, type's number, kind of values, bytes)."""
    e, h, f = shape.experts, shape.hidden, shape.width

    def tensor(name, dims, type_name):
        number, block, size = {"F32": (0, 1, 4), "BF16": (30, 1, 2), "MXFP4": (39, 32, 17)}[type_name]
        return name, dims, number, type_name, int(np.prod(dims)) // block * size

    yield tensor("token_embd.weight", [shape.vocab, h], "BF16")
    yield tensor("output.weight", [shape.vocab, h], "BF16")
    yield tensor("output_norm.weight", [h], "F32")
    for i in range(shape.layers):
        block = f"blk.{i}."
        for name in ("attn_norm", "post_attention_norm"):
            yield tensor(f"{block}{name}.weight", [h], "F32")
        for _, name, dims in attention(shape):
            yield tensor(f"{block}{name}.weight", dims, "BF16")
            yield tensor(f"{block}{name}.bias", dims[:1], "F32")
        yield tensor(f"{block}attn_sinks.weight", [shape.heads], "F32")
        yield tensor(f"{block}ffn_gate_inp.weight", [e, h], "F32")
        yield tensor(f"{block}ffn_gate_inp.bias", [e], "F32")
        for name, rows in (("ffn_gate_exps", f), ("ffn_up_exps", f), ("ffn_down_exps", h)):
            yield tensor(f"{block}{name}.weight", [e, rows, h], "MXFP4")
            yield tensor(f"{block}{name}.bias", [e, rows], "F32")


def gguf_key(name, value):
    text = name.encode()
    out = struct.pack("<Q", len(text)) + text
    if isinstance(value, str):
        return out + struct.pack("<IQ", 8, len(value)) + value.encode()
    return out + (struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value))


def write_gguf(path, shape):
    keys = {"block_count": shape.layers, "context_length": 131_072, "embedding_length": shape.hidden, "feed_forward_length": shape.width,
            "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head_dim,
            "attention.value_length": shape.head_dim, "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 128,
            "expert_count": shape.experts, "expert_used_count": shape.top_k, "expert_feed_forward_length": shape.width,
            "rope.freq_base": 150_000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096}
    tensors = list(gguf_tensors(shape))
    out = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 1 + len(keys)) + gguf_key("general.architecture", "gpt-oss")
    out += b"".join(gguf_key(f"gpt-oss.{key}", value) for key, value in keys.items())
    at = 0
    for name, dims, number, _, size in tensors:
        text = name.encode()
        out += struct.pack("<Q", len(text)) + text + struct.pack(f"<I{len(dims)}QIQ", len(dims), *reversed(dims), number, at)
        at += -(-size // 32) * 32
    values = Values()
    with open(path, "wb") as file:
        file.write(out + b"\0" * (-len(out) % 32))
        for _, _, _, kind, size in tensors:
            for part in values.parts(kind, size):
                file.write(part.data)
            file.write(b"\0" * (-size % 32))


def write_model(folder, form, shape):
    if form == "gguf":
        write_gguf(folder / "model.gguf", shape)
        return
    config = config_of(shape)
    if form == "published":
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(folder / "model.safetensors", shape, quantized=form == "published")
