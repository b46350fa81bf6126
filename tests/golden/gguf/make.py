"""Makes blocks/TYPE.blocks and blocks/TYPE.floats: random blocks of every type that workers/checkpoint/gguf decodes, and
what the gguf Python package makes of them, which tests/workers/checkpoint/gguf_block_formats_test.cc compares bit by bit.

pip install gguf numpy; python3 tests/golden/gguf/make.py
"""
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent / "blocks"

# A type: where its halves (scales, minima) stand in a block.
HALVES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
          "F32": [], "BF16": []}
# Zero of both signs, subnormal, the smallest normal, ordinary of both signs, and the largest.
ODD = np.array([0.0, -0.0, 6e-8, -3.1e-5, 6.104e-5, 0.0123, -0.75, 1.0, -13.5, 65504.0, -65504.0], np.float16)


def blocks_of(name, rng):
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = {1: 256, 32: 24, 256: 12}[elements]
    if name in ("F32", "BF16"):  # every exponent but that of infinities, both signs
        bits = rng.integers(0, 2**32, count, np.uint32)
        bits &= ~np.uint32(1 << 30) | (bits << np.uint32(1))
        bits[(bits & 0x7f800000) == 0x7f800000] = 0x80000001
        return (bits.view(np.uint8) if name == "F32" else (bits >> 16).astype(np.uint16).view(np.uint8)).reshape(count, size)
    data = rng.integers(0, 256, (count, size), np.uint8)
    for at in HALVES[name]:
        scales = rng.standard_normal(count).astype(np.float16)
        odd = rng.permutation(ODD)[:count]
        scales[:min(len(odd), count // 2 + 1)] = odd[:min(len(odd), count // 2 + 1)]
        data[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)
    if name == "F16":
        data[len(ODD):, :] = rng.standard_normal(count - len(ODD)).astype(np.float16).view(np.uint8).reshape(-1, 2)
        data[:len(ODD), :] = ODD.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        data[:8, 0] = [0, 1, 2, 3, 127, 128, 250, 254]
    return data


def main():
    HERE.mkdir(exist_ok=True)
    for seed, name in enumerate(HALVES):
        blocks = blocks_of(name, np.random.default_rng(seed))
        with np.errstate(over="ignore"):
            values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
        assert values.dtype == np.float32 and not np.isnan(values).any(), name
        (HERE / f"{name}.blocks").write_bytes(blocks.tobytes())
        (HERE / f"{name}.floats").write_bytes(values.tobytes())
        print(name, blocks.shape, values.size, float(np.abs(values).min()), float(np.abs(values).max()))


main()
