#!/usr/bin/env python3
"""Makes the golden matrices and models of quantized checkpoints.

    python3 make.py --gptqmodel DIR --autoawq DIR

needs torch, transformers 5.23, compressed-tensors 0.20 and the unpacked sources of gptqmodel 7.7 and autoawq 0.2.9.

matrices/model.safetensors has, for each case of matrices/cases.json, the tensors "CASE.…" as published and
"CASE.expected": the values of the format's reference, in fp32, or in the dtype in which the reference multiplies
(compressed-tensors: that of the scales), to which ours are rounded before they are compared.

models/FORMAT is a small Qwen3-MoE checkpoint whose attention and experts are quantized; its goldens.safetensors has
`tokens` [S] and `values` [S, V], the logits of transformers in fp32 on the weights that the reference decodes.
"""
import argparse
import json
import os
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import formats as f

HERE = os.path.dirname(os.path.abspath(__file__))
GENERATOR = torch.Generator().manual_seed(27)
CONFIG = dict(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
              head_dim=16, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
              max_position_embeddings=128, intermediate_size=32, tie_word_embeddings=False, rms_norm_eps=1e-6,
              rope_theta=10000.0, decoder_sparse_step=1, bos_token_id=1, eos_token_id=2)
INT4 = dict(num_bits=4, type="int", strategy="group", group_size=16)


def normal(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def fp8_codes(*shape):
    """Any codes but NaN."""
    codes = torch.randint(0, 256, shape, generator=GENERATOR)
    return torch.where(codes % 128 == 127, codes - 1, codes).to(torch.uint8).view(f.FP8)


def fp8_cases(refs):
    def case(config, codes, scales, suffix="weight_scale_inv"):
        expected = refs.fp8(codes, scales if scales.dim() > 1 else scales.reshape(1, 1))
        return config, {"weight": codes, suffix: scales}, expected

    block = f.ct_scheme(num_bits=8, type="float", strategy="block", block_structure=[16, 16])
    edge, edge_scales = f.fp8_block(normal(40, 50), [16, 16])
    fused = [f.fp8_block(normal(40, 32), [16, 16]) for _ in range(3)]
    every = torch.arange(256).repeat(2).reshape(16, 32)
    every = torch.where(every % 128 == 127, 0, every).to(torch.uint8).view(f.FP8)
    e8m0, e8m0_scales = f.fp8_block(normal(32, 64), [16, 32], torch.float8_e8m0fnu)
    yield "fp8_block", case(f.fp8_config([16, 32]), fp8_codes(48, 64), normal(3, 2).abs())
    yield "fp8_every_code", case(f.fp8_config(), every, torch.tensor(0.375), "weight_scale")
    yield "fp8_channel", case(f.fp8_config(), fp8_codes(24, 40), normal(24, 1).abs().bfloat16(), "weight_scale")
    yield "fp8_e8m0", case(f.fp8_config([16, 32], scale_fmt="ue8m0"), e8m0, e8m0_scales)
    expected = refs.compressed({"weight": edge, "weight_scale": edge_scales}, block)
    yield "fp8_edge", (f.fp8_config([16, 16]), {"weight": edge, "weight_scale_inv": edge_scales}, expected)
    expected = torch.stack([refs.compressed({"weight": q, "weight_scale": s}, block) for q, s in fused])
    yield "fp8_fused", (f.fp8_config([16, 16]),
                        {"weight": torch.stack([q for q, _ in fused]),
                         "weight_scale_inv": torch.stack([s for _, s in fused])}, expected)


def compressed_cases(refs):
    def case(format, dtype, shape, **args):
        tensors = f.ct_tensors(normal(*shape), format, dtype, **args)
        return f.ct_config(format, **args), tensors, refs.compressed(tensors, f.ct_scheme(**args))

    p, i, n = "pack-quantized", "int-quantized", "float-quantized"
    channel = dict(num_bits=4, type="int", strategy="channel")
    yield "int4_group", case(p, torch.float32, (24, 64), **INT4)
    yield "int4_group_zeros", case(p, torch.bfloat16, (24, 64), symmetric=False, **INT4)
    yield "int4_channel_zeros", case(p, torch.float16, (20, 44), symmetric=False, **channel)
    yield "int8_packed_zeros", case(p, torch.float32, (18, 64), symmetric=False, **dict(INT4, num_bits=8))
    yield "int8_channel", case(i, torch.bfloat16, (24, 40), num_bits=8, type="int", strategy="channel")
    yield "int8_tensor_zeros", case(i, torch.float32, (24, 40), num_bits=8, type="int", strategy="tensor", symmetric=False)
    yield "int8_group", case(i, torch.float32, (24, 48), num_bits=8, type="int", strategy="group", group_size=16)
    yield "float_channel", case(n, torch.bfloat16, (24, 40), num_bits=8, type="float", strategy="channel")
    yield "float_tensor", case(n, torch.float32, (24, 40), num_bits=8, type="float", strategy="tensor")
    yield "float_edge", case(n, torch.float32, (40, 50), num_bits=8, type="float", strategy="block", block_structure=[16, 16])
    # Columns that name their groups, which compressed-tensors read until 2026: as columns in order, put back.
    tensors = f.ct_tensors(normal(24, 64), p, torch.float32, **INT4)
    order = torch.randperm(64, generator=GENERATOR)
    expected = refs.compressed(tensors, f.ct_scheme(**INT4))[:, order]
    nibbles = (tensors["weight_packed"].view(torch.uint8)[..., None] >> torch.tensor([0, 4])) & 15
    tensors["weight_packed"] = f.pack(nibbles.reshape(24, 64)[:, order], 4)
    tensors["weight_g_idx"] = (order // 16).to(torch.int32)
    yield "int4_ordered", (f.ct_config(p, actorder="group", **INT4), tensors, expected)


def other_cases(refs):
    for name, shape, config in [
            ("gptq4", (32, 64), f.gptq_config(4, 16)),
            ("gptq4_ordered", (32, 64), f.gptq_config(4, 16, desc_act=True, sym=False)),
            ("gptq4_v2", (32, 64), f.gptq_config(4, 16, sym=False, checkpoint_format="gptq_v2")),
            ("gptq8_row", (36, 64), f.gptq_config(8, -1))]:
        weight = normal(*shape)
        if not config["sym"]:
            weight[:3] = weight[:3].abs()  # zero points of 0, from which the first format borrows
        tensors = f.gptq_tensors(weight, config, GENERATOR)
        yield name, (config, tensors, refs.gptq(tensors, config))
    tensors = f.awq_tensors(normal(32, 64), 16)
    yield "awq4", (f.awq_config(16), tensors, refs.awq(tensors, 16))
    blocks = torch.randint(0, 256, (2, 6, 3, 16), generator=GENERATOR).to(torch.uint8)
    scales = torch.randint(100, 140, (2, 6, 3), generator=GENERATOR).to(torch.uint8)
    expected = f.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2).contiguous()
    yield "mxfp4", ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
                    {"_blocks": blocks, "_scales": scales}, expected)


def make_matrices(refs):
    folder, cases, tensors = os.path.join(HERE, "matrices"), {}, {}
    os.makedirs(folder, exist_ok=True)
    for source in (fp8_cases, compressed_cases, other_cases):
        for name, (config, parts, expected) in source(refs):
            bare = name == "mxfp4"
            cases[name] = {"config": config, "shape": list(expected.shape), "tensor": name if bare else name + ".weight"}
            for suffix, value in parts.items():
                tensors[name + suffix if bare else f"{name}.{suffix}"] = value.contiguous()
            tensors[name + ".expected"] = expected.contiguous()
    save_file(tensors, os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "cases.json"), "w") as file:
        json.dump(cases, file, indent=1)
        file.write("\n")


def is_quantized(name):
    return ".self_attn." in name and "proj" in name or ".mlp.experts." in name


def model_formats(refs):
    block, int8 = [16, 16], dict(num_bits=8, type="int", strategy="channel")
    fp8 = dict(num_bits=8, type="float", strategy="channel")
    gptq, zeros = f.gptq_config(4, 16, desc_act=True), dict(INT4, symmetric=False)

    def compressed(format, args):
        def both(weight):
            tensors = f.ct_tensors(weight, format, torch.bfloat16, **args)
            wide = {k: v.float() if k == "weight_scale" else v for k, v in tensors.items()}
            return tensors, refs.compressed(wide, f.ct_scheme(**args))
        return f.ct_config(format, **args), both

    def fp8_both(weight):
        codes, scales = f.fp8_block(weight, block)
        return {"weight": codes, "weight_scale_inv": scales}, refs.fp8(codes, scales)

    def gptq_both(weight):
        tensors = f.gptq_tensors(weight, gptq, GENERATOR)
        return tensors, refs.gptq(tensors, gptq)

    def awq_both(weight):
        tensors = f.awq_tensors(weight, 16)
        return tensors, refs.awq(tensors, 16)

    yield "fp8", (f.fp8_config(block, modules_to_not_convert=["lm_head"]), fp8_both)
    yield "int4", compressed("pack-quantized", zeros)
    yield "int8", compressed("int-quantized", int8)
    yield "float", compressed("float-quantized", fp8)
    yield "gptq", (gptq, gptq_both)
    yield "awq", (f.awq_config(16), awq_both)


def plain_weights():
    """By the names of published checkpoints."""
    hidden, width, out = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"], {}
    layer = "model.layers.0."
    shapes = {"model.embed_tokens": (64, hidden), "lm_head": (64, hidden), layer + "self_attn.q_proj": (64, hidden),
              layer + "self_attn.k_proj": (32, hidden), layer + "self_attn.v_proj": (32, hidden),
              layer + "self_attn.o_proj": (hidden, 64), layer + "mlp.gate": (CONFIG["num_experts"], hidden)}
    for e in range(CONFIG["num_experts"]):
        for proj in ("gate_proj", "up_proj"):
            shapes[f"{layer}mlp.experts.{e}.{proj}"] = (width, hidden)
        shapes[f"{layer}mlp.experts.{e}.down_proj"] = (hidden, width)
    for name, shape in shapes.items():
        wide = 3 if "gate" in name and "experts" not in name else 1.5
        out[name + ".weight"] = (normal(*shape) * wide / shape[1]**0.5).bfloat16()
    for name in ("model.norm", layer + "input_layernorm", layer + "post_attention_layernorm"):
        out[name + ".weight"] = (1 + normal(hidden) / 4).bfloat16()
    for name in ("q_norm", "k_norm"):
        out[f"{layer}self_attn.{name}.weight"] = (1 + normal(16) / 4).bfloat16()
    return out


def logits_of(weights, tokens):
    with tempfile.TemporaryDirectory() as folder:
        Qwen3MoeConfig(**CONFIG, dtype="float32", architectures=["Qwen3MoeForCausalLM"]).save_pretrained(folder)
        save_file({k: v.float() for k, v in weights.items()}, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        assert isinstance(model, Qwen3MoeForCausalLM)
        with torch.no_grad():
            return model(tokens[None]).logits[0]


def make_models(refs):
    tokens = torch.randint(3, 64, (16,), generator=GENERATOR)
    for name, (config, both) in model_formats(refs):
        folder, stored, plain = os.path.join(HERE, "models", name), {}, {}
        os.makedirs(folder, exist_ok=True)
        for tensor, value in plain_weights().items():
            if not is_quantized(tensor):
                stored[tensor] = plain[tensor] = value
                continue
            parts, plain[tensor] = both(value.float())
            module = tensor.removesuffix("weight")
            stored.update({module + suffix: part.contiguous() for suffix, part in parts.items()})
        values = logits_of(plain, tokens)
        save_file(stored, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        save_file({"tokens": tokens.to(torch.int32), "values": values.contiguous()}, os.path.join(folder, "goldens.safetensors"))
        document = dict(CONFIG, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_act="silu",
                        torch_dtype="bfloat16", quantization_config=config)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gptqmodel", required=True)
    parser.add_argument("--autoawq", required=True)
    flags = parser.parse_args()
    refs = f.References(flags.gptqmodel, flags.autoawq)
    make_matrices(refs)
    make_models(refs)


if __name__ == "__main__":
    main()
