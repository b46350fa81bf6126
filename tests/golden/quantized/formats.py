"""Matrices in the published formats of quantized weights, and what each format's own reference decodes them to.

A case is (config, tensors, expected): the quantization_config, the tensors of a module by suffix, and the values, in
fp32 or in the dtype that the reference multiplies in.  References: transformers (fp8, MXFP4), compressed-tensors,
gptqmodel (GPTQ) and autoawq (AWQ); the last two from their source archives, of which single files are loaded.
"""
import importlib.util
import logging
import os
import sys
import tempfile
import types

import torch
from safetensors.torch import save_file

from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationScheme
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

FP8 = torch.float8_e4m3fn
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


class Stub(types.ModuleType):
    """A module of which every name is there, and nothing is called."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: logging.getLogger("stub") if name == "setup_logger" else ()


def load_gptq(source):
    """gptqmodel's decoder of files, without the package's other imports."""
    for name in ("gptqmodel", "gptqmodel.utils"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(source, *name.split("."))]
        sys.modules[name] = package
    for name in ("gptqmodel.utils.logger", "gptqmodel.utils.torch", "gptqmodel.quantization",
                 "gptqmodel.quantization.dtype"):
        sys.modules[name] = Stub(name)
    from gptqmodel.utils.model_dequant import convert_gptq_file
    return convert_gptq_file


def load_awq(source):
    path = os.path.join(source, "awq", "utils", "packing_utils.py")
    spec = importlib.util.spec_from_file_location("packing_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dequantize_gemm


class References:
    def __init__(self, gptq_source, awq_source):
        self.gptq_file = load_gptq(gptq_source)
        self.awq_gemm = load_awq(awq_source)

    def fp8(self, weight, scales):
        return Fp8Dequantize(None)._dequantize_one(weight, scales, output_dtype=torch.float32)

    def compressed(self, tensors, scheme):
        packed = "weight_packed" in tensors
        compressor = PackedQuantizationCompressor if packed else NaiveQuantizationCompressor
        return compressor.decompress(dict(tensors), scheme)["weight"]

    def gptq(self, tensors, config):
        # gptqmodel's loader adds 1 to each field by one addition to the word, as its writer subtracts; its decoder of
        # files, which is called here, adds it to each field alone.
        if config.get("checkpoint_format", "gptq") == "gptq":
            tensors = dict(tensors, qzeros=tensors["qzeros"] + ones(config["bits"]))
            config = dict(config, checkpoint_format="gptq_v2")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            save_file({"m." + name: value.contiguous() for name, value in tensors.items()}, path)
            return self.gptq_file(path, torch.float32, config, "cpu")["m.weight"]

    def awq(self, tensors, group):
        scales = tensors["scales"].float()
        return self.awq_gemm(tensors["qweight"], tensors["qzeros"], scales, 4, group).t().contiguous()


# fp8


def fp8_config(block=None, **more):
    return dict({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block}, **more)


def fp8_block(weight, block, scale_dtype=torch.float32):
    """[rows, columns] to codes and a scale for each block; blocks at the edges are partial."""
    rows, columns = weight.shape
    high, wide = -(-rows // block[0]), -(-columns // block[1])
    padded = torch.zeros(high * block[0], wide * block[1])
    padded[:rows, :columns] = weight
    blocks = padded.reshape(high, block[0], wide, block[1])
    scales = (blocks.abs().amax(dim=(1, 3)) / 448).clamp(min=1e-6)
    if scale_dtype == torch.float8_e8m0fnu:
        scales = scales.log2().ceil().exp2()
    scales = scales.to(scale_dtype)
    codes = (blocks / scales.float()[:, None, :, None]).to(FP8)
    return codes.reshape(padded.shape)[:rows, :columns].contiguous(), scales


def ct_scheme(**weights):
    return QuantizationScheme(targets=["Linear"], weights=weights)


def ct_config(format, **weights):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def ct_tensors(weight, format, scale_dtype, **args):
    """Scales by the largest of each group, and what compressed-tensors' own compressor makes of the weight."""
    rows, columns = weight.shape
    strategy, symmetric, bits = args["strategy"], args.get("symmetric", True), args["num_bits"]
    floats = args.get("type") == "float"
    if strategy == "tensor":
        groups = weight.reshape(1, 1, -1)
    elif strategy == "channel":
        groups = weight.reshape(rows, 1, columns)
    elif strategy == "group":
        groups = weight.reshape(rows, -1, args["group_size"])
    else:
        codes, scales = fp8_block(weight, args["block_structure"], scale_dtype)
        return {"weight": codes, "weight_scale": scales}
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    largest = 448 if floats else 2 ** (bits - 1) - 1
    tensors = {"weight": weight}
    if symmetric:
        tensors["weight_scale"] = (torch.maximum(-low, high) / largest).to(scale_dtype)
    else:
        scale = ((high - low) / (2**bits - 1)).to(scale_dtype)
        tensors["weight_scale"] = scale
        zero = (-low / scale.float()).round() - 2 ** (bits - 1)
        tensors["weight_zero_point"] = zero.clamp(-(2 ** (bits - 1)), largest).to(torch.int8)
    if strategy == "tensor":
        tensors = {name: value if name == "weight" else value.reshape(1) for name, value in tensors.items()}
    compressor = PackedQuantizationCompressor if format == "pack-quantized" else NaiveQuantizationCompressor
    out = compressor.compress({k: v.to(scale_dtype) if k == "weight" else v for k, v in tensors.items()}, ct_scheme(**args))
    return {name: value for name, value in out.items()}


# GPTQ and AWQ


def pack(codes, bits, order=None):
    """[..., n] codes to int32 words of 32 / bits codes, the lowest bits first."""
    factor = 32 // bits
    fields = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, factor)
    if order is not None:
        fields = fields[..., order]
    words = (fields << (torch.arange(factor) * bits)).sum(dim=-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def ones(bits):
    """A word of which every field is 1."""
    return sum(1 << field for field in range(0, 32, bits))


def groups_of(weight, bits, group_of_column, symmetric):
    """Codes [rows, columns], scales and zero points [rows, groups]."""
    count = int(group_of_column.max()) + 1
    scales, zeros = torch.zeros(weight.shape[0], count), torch.zeros(weight.shape[0], count)
    for g in range(count):
        part = weight[:, group_of_column == g]
        low, high = part.amin(dim=1).clamp(max=0), part.amax(dim=1).clamp(min=0)
        if symmetric:
            scales[:, g] = torch.maximum(-low, high) * 2 / (2**bits - 1)
            zeros[:, g] = 2 ** (bits - 1)
        else:
            scales[:, g] = (high - low) / (2**bits - 1)
            zeros[:, g] = (-low / scales[:, g]).round()
    scales = scales.to(torch.float16)
    column_scales, column_zeros = scales.float()[:, group_of_column], zeros[:, group_of_column]
    codes = (weight / column_scales + column_zeros).round().clamp(0, 2**bits - 1)
    return codes, scales, zeros


def gptq_config(bits, group, **more):
    return dict({"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True}, **more)


def gptq_tensors(weight, config, generator):
    bits, columns = config["bits"], weight.shape[1]
    group = config["group_size"] if config["group_size"] > 0 else columns
    order = torch.arange(columns) // group
    if config["desc_act"]:
        order = order[torch.randperm(columns, generator=generator)]
    codes, scales, zeros = groups_of(weight, bits, order, config["sym"])
    # The first format subtracts 1 from each field by one subtraction from the word, with borrows where a field is 0.
    less = 0 if config.get("checkpoint_format") == "gptq_v2" else ones(bits)
    return {"qweight": pack(codes, bits).t().contiguous(), "scales": scales.t().contiguous(),
            "qzeros": pack(zeros.t(), bits) - less, "g_idx": order.to(torch.int32)}


def awq_config(group):
    return {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}


def awq_tensors(weight, group):
    codes, scales, zeros = groups_of(weight, 4, torch.arange(weight.shape[1]) // group, symmetric=False)
    return {"qweight": pack(codes.t(), 4, AWQ_ORDER), "scales": scales.t().contiguous(),
            "qzeros": pack(zeros.t(), 4, AWQ_ORDER)}
