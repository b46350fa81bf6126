"""The tiny checkpoints that tests/workers/model compares with HuggingFace transformers: their shapes, as data.

`config` is given to transformers; `written` says how the directory spells it (v4 or v5 config.json, per-expert or fused
tensors, number of shards, dtype of the files).
"""
import dataclasses


@dataclasses.dataclass
class Fixture:
    name: str
    model_type: str
    config: dict                 # what differs from COMMON
    config_style: str = "v4"     # spelling of config.json
    experts: str = "each"        # "each": one tensor per expert; "fused": gate_up_proj [E, 2F, H]; "mxfp4"
    shards: int = 1
    dtype: str = "bfloat16"
    seed: int = 1
    greedy_lengths: tuple = ()   # further prompts, beside those that every fixture has
    logits_lengths: tuple = ()


COMMON = dict(vocab_size=256, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=640, hidden_act="silu", bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)

QWEN2 = dict(intermediate_size=40, moe_intermediate_size=24, shared_expert_intermediate_size=32, num_experts=6,
             num_experts_per_tok=2, rms_norm_eps=1e-6)
QWEN3 = dict(intermediate_size=40, moe_intermediate_size=24, num_experts=7, num_experts_per_tok=3, head_dim=16,
             rms_norm_eps=1e-6)
GPT_OSS = dict(head_dim=16, rms_norm_eps=1e-5, rope_theta=150000.0)
GPT2 = dict(moe_intermediate_size=24, num_key_value_heads=4, layer_norm_epsilon=1e-5)

FIXTURES = [
    # GQA, odd expert count, head_dim from hidden / heads.
    Fixture("mixtral-gqa", "mixtral",
            dict(intermediate_size=32, num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-5,
                 rope_theta=1e6, sliding_window=None)),
    # Window, head_dim of its own, tied embeddings, shards.
    Fixture("mixtral-window", "mixtral",
            dict(intermediate_size=24, num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5, head_dim=16,
                 rope_theta=1e4, sliding_window=9, tie_word_embeddings=True),
            shards=3, dtype="float32"),
    # v5 spelling, fused experts, linear RoPE.
    Fixture("mixtral-fused", "mixtral",
            dict(intermediate_size=24, num_local_experts=8, num_experts_per_tok=3, rms_norm_eps=1e-5,
                 rope_theta=1e4, rope=dict(rope_type="linear", factor=2.0)),
            config_style="v5", experts="fused", dtype="float16"),
    # Shared expert, q/k/v biases, no renormalisation, a dense first layer, vocabulary of an odd size.
    Fixture("qwen2-shared", "qwen2_moe",
            dict(QWEN2, norm_topk_prob=False, mlp_only_layers=[0], num_hidden_layers=3, vocab_size=261,
                 rope_theta=1e4)),
    # Sliding layers between full ones, every second layer dense, renormalised, MHA.
    Fixture("qwen2-sliding", "qwen2_moe",
            dict(QWEN2, norm_topk_prob=True, decoder_sparse_step=2, num_hidden_layers=4, num_key_value_heads=4,
                 hidden_size=32, use_sliding_window=True, sliding_window=7, max_window_layers=3, rope_theta=1e4),
            config_style="v5", experts="fused", shards=2),
    # q/k norm per head, head_dim of its own, renormalised, tied embeddings.
    Fixture("qwen3-qknorm", "qwen3_moe",
            dict(QWEN3, norm_topk_prob=True, tie_word_embeddings=True, rope_theta=1e6)),
    # YaRN, no renormalisation, one dense layer between.
    Fixture("qwen3-yarn", "qwen3_moe",
            dict(QWEN3, norm_topk_prob=False, mlp_only_layers=[1], num_hidden_layers=3, rope_theta=1e4,
                 rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=160)),
            config_style="v5"),
    # llama3 RoPE in the v4 spelling, biases on q, k, v and o, a window on every layer.
    Fixture("qwen3-llama3", "qwen3_moe",
            dict(QWEN3, norm_topk_prob=True, attention_bias=True, use_sliding_window=True, sliding_window=20,
                 rope_theta=5e5,
                 rope=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=64)),
            dtype="float16"),
    # Norm over whole rows, clip_qkv, MHA, no renormalisation.
    Fixture("olmoe-clip", "olmoe",
            dict(intermediate_size=24, num_experts=8, num_experts_per_tok=4, num_key_value_heads=4, clip_qkv=1.5,
                 norm_topk_prob=False, rms_norm_eps=1e-5, rope_theta=1e4)),
    # GQA, longrope, renormalised, v5 spelling.  Short factors below position 64: greedy runs that stay there, that cross
    # it, that begin at it, and prompts beyond it.
    Fixture("olmoe-longrope", "olmoe",
            dict(intermediate_size=24, num_experts=9, num_experts_per_tok=2, norm_topk_prob=True, rms_norm_eps=1e-5,
                 rope_theta=1e4,
                 rope=dict(rope_type="longrope", factor=2.0, original_max_position_embeddings=64,
                           short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5], long_factor=[2.0, 2.5, 3.0, 4.0, 5.0, 6.0])),
            config_style="v5", experts="fused", dtype="float32", greedy_lengths=(2, 63, 64, 65, 66, 100),
            logits_lengths=(64, 65)),
    # GPT-2 with experts (gpt2_moe.py): every second layer, renormalised top-2, gelu by tanh, a tied head.
    Fixture("gpt2-top2", "gpt2_moe",
            dict(GPT2, num_hidden_layers=4, decoder_sparse_step=2, intermediate_size=40, num_experts=5,
                 num_experts_per_tok=2, norm_topk_prob=True, hidden_act="gelu_new", tie_word_embeddings=True)),
    # Every layer, top-1, exact gelu, a head of its own, wider experts.
    Fixture("gpt2-top1", "gpt2_moe",
            dict(GPT2, num_hidden_layers=2, decoder_sparse_step=1, moe_intermediate_size=72, num_experts=4,
                 num_experts_per_tok=1, norm_topk_prob=False, hidden_act="gelu", layer_norm_epsilon=1e-3)),
    # Experts chosen by probability and a bias, which stays fp32.
    Fixture("gpt2-bias", "gpt2_moe",
            dict(GPT2, num_hidden_layers=2, decoder_sparse_step=1, num_experts=6, num_experts_per_tok=2,
                 norm_topk_prob=True, hidden_act="gelu_new", tie_word_embeddings=True, topk_method="noaux_tc")),
    # gpt-oss as a dequantized checkpoint: experts transposed (fused [E, H, 2F], gate and up interleaved), odd sizes, the
    # older spelling, the published limit of the activation.
    Fixture("gptoss-plain", "gpt_oss",
            dict(GPT_OSS, num_hidden_layers=3, intermediate_size=24, num_local_experts=5, num_experts_per_tok=2,
                 sliding_window=9,
                 rope=dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                           original_max_position_embeddings=80)),
            experts="fused"),
    # As it is published: experts in MXFP4, files counted from 0; one kv head, full layers first, another limit and alpha.
    Fixture("gptoss-mxfp4", "gpt_oss",
            dict(GPT_OSS, num_hidden_layers=3, hidden_size=64, intermediate_size=32, num_local_experts=7,
                 num_experts_per_tok=3, num_key_value_heads=1, sliding_window=12, swiglu_limit=2.5, swiglu_alpha=1.25,
                 layer_types=["full_attention", "sliding_attention", "full_attention"],
                 rope=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                           original_max_position_embeddings=20)),
            config_style="v5", experts="mxfp4", shards=2),
]
