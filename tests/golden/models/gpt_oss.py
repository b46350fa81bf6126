"""What is gpt-oss's own in the fixtures: wide values for its parts, and the published form of its experts (MXFP4)."""
import torch

QUANTIZATION = dict(quant_method="mxfp4",
                    modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                            "model.embed_tokens", "lm_head"])
VALUES = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
GROUP = 32


def is_router(module):
    return type(module).__name__ == "GptOssTopKRouter"


def quantize(value):
    """[..., H] in groups of 32 as codes [..., H / 32, 32] and exponents [..., H / 32], powers of two."""
    groups = value.reshape(*value.shape[:-1], -1, GROUP)
    exponents = torch.ceil(torch.log2(groups.abs().amax(dim=-1).clamp(min=1e-6) / 6))
    codes = (groups[..., None] / torch.exp2(exponents)[..., None, None] - VALUES).abs().argmin(dim=-1)
    return codes, exponents


def on_grid(value):
    codes, exponents = quantize(value)
    return (VALUES[codes] * torch.exp2(exponents)[..., None]).reshape(value.shape)


def fill(name, p, config, generator, grid_normal):
    """The value of a parameter of gpt-oss that no other family has; None: it is filled as theirs are.  Experts are
    transposed, and all of them lie on the grid of MXFP4 where their sizes allow it."""
    if not hasattr(config, "swiglu_limit"):
        return None
    if name.endswith("sinks"):
        return 1.5 + grid_normal(p.shape, 1.0, generator)
    if name.endswith("router.weight"):
        return grid_normal(p.shape, 3.0 / p.shape[-1]**0.5, generator)
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return None
    # Wide enough that some sums are beyond the limit of the activation.
    std = 0.4 * config.swiglu_limit if name.endswith("gate_up_proj") else 1.25 / config.swiglu_limit
    value = grid_normal(p.shape, std / p.shape[-2]**0.5, generator).transpose(-1, -2)
    if value.shape[-1] % GROUP == 0:
        value = on_grid(value)
    return value.transpose(-1, -2)


def published(state):
    """Experts as *_blocks and *_scales: rows are outputs, two codes a byte, the first in the low half."""
    out = {}
    for name, value in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = value
            continue
        codes, exponents = quantize(value.float().transpose(-1, -2).contiguous())
        codes = codes.to(torch.uint8)
        out[name + "_blocks"] = (codes[..., 0::2] | (codes[..., 1::2] << 4)).contiguous()
        out[name + "_scales"] = (exponents + 127).to(torch.uint8).contiguous()
    return out
