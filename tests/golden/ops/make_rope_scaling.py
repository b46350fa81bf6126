"""Writes rope_scaling.inc: the frequencies that transformers computes for one config of each RoPE scaling.

    python3 tests/golden/ops/make_rope_scaling.py > tests/golden/ops/rope_scaling.inc
"""
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

DIM, THETA, ORIGINAL = 16, 10000.0, 64
SHORT = [1.0 + 0.1 * j for j in range(DIM // 2)]
LONG = [2.0 + 0.5 * j for j in range(DIM // 2)]

# name, kind in C++, further fields of RopeConfig, rope_parameters of HF, max_position_embeddings
CASES = [
    ("Linear", "kLinear", ".factor = 4", {"rope_type": "linear", "factor": 4.0}, 256),
    ("Yarn", "kYarn", ".factor = 4, .original_max_positions = 64",
     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}, 256),
    ("YarnBetasNoTruncate", "kYarn",
     ".factor = 8, .original_max_positions = 64, .beta_fast = 8, .beta_slow = 2, .truncate = false",
     {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": ORIGINAL, "beta_fast": 8.0,
      "beta_slow": 2.0, "truncate": False}, 512),
    ("YarnMscale", "kYarn", ".factor = 40, .original_max_positions = 64, .mscale = 1, .mscale_all_dim = 0.707",
     {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": ORIGINAL, "mscale": 1.0,
      "mscale_all_dim": 0.707}, 2560),
    ("LongRopeShort", "kLongRope", ".factor = 4, .original_max_positions = 64",
     {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": ORIGINAL,
      "short_factor": SHORT, "long_factor": LONG}, 256),
    ("LongRopeLong", "kLongRope", ".factor = 4, .original_max_positions = 64",
     {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": ORIGINAL,
      "short_factor": SHORT, "long_factor": LONG}, 256),
    ("Llama3", "kLlama3",
     ".factor = 8, .original_max_positions = 64, .low_freq_factor = 1, .high_freq_factor = 4",
     {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": ORIGINAL, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0}, 512),
]


def main():
    for name, kind, fields, parameters, max_positions in CASES:
        config = LlamaConfig(hidden_size=4 * DIM, num_attention_heads=4, head_dim=DIM,
                             max_position_embeddings=max_positions,
                             rope_parameters={"rope_theta": THETA, **parameters})
        seq_len = max_positions if name.endswith("Long") else 1
        inv_freq, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=seq_len)
        lists = ""
        if kind == "kLongRope":
            lists = (f", .short_factor = {{{', '.join(map(repr, SHORT))}}}, "
                     f".long_factor = {{{', '.join(map(repr, LONG))}}}, "
                     f".use_long_factors = {'true' if name.endswith('Long') else 'false'}")
        print(f'{{"{name}",')
        print(f" {{.kind = RopeKind::{kind}, .theta = {THETA}, .rotary_dim = {DIM}, {fields}{lists}}},")
        print(f" {{{', '.join(f'{v:.9g}' for v in inv_freq.tolist())}}},")
        print(f" {factor!r}}},")


main()
