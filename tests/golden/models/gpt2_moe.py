"""GPT-2 with experts: what transformers has no model for, of its own GPT-2 parts (attention, MLP, LayerNorm) and a plain
MoE block.  The oracle of the family gpt2_moe (workers/model/README.md has its config.json and names)."""
import json
import math
import os
import types

import torch
from safetensors.torch import load_file
from transformers import DynamicCache, GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention


def scores(gate, logits):
    """What experts are chosen by: probabilities, with the gate's bias if it has one (topk_method noaux_tc)."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    probabilities = torch.softmax(wide, dim=-1)
    bias = getattr(gate, "e_score_correction_bias", None)
    return probabilities if bias is None else probabilities + bias.to(wide.dtype)


def with_room(chosen, experts, capacity):
    """[T, K]: which choices find room at their expert.  GShard's Algorithm 1 as one sum over choices laid one behind
    the other: all first ones, then all second ones; each by rising token."""
    order = torch.nn.functional.one_hot(chosen.t().reshape(-1), experts)
    place = (order.cumsum(dim=0) * order).sum(dim=-1)
    return (place <= capacity).reshape(chosen.shape[1], -1).t()


class MoeBlock(torch.nn.Module):
    """Each token's output is the sum of its top_k experts' by their (maybe renormalised) probabilities.  Dropless, unless
    a capacity_factor is set; then `dropped` counts the choices that found no room."""

    capacity_factor = 0.0
    dropped = 0

    def __init__(self, config, parts):
        super().__init__()
        self.top_k, self.renormalize = config.num_experts_per_tok, config.norm_topk_prob
        self.gate = torch.nn.Linear(config.hidden_size, config.num_experts, bias=False)
        if getattr(config, "topk_method", "greedy") == "noaux_tc":
            self.gate.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.experts = torch.nn.ModuleList(GPT2MLP(config.moe_intermediate_size, parts)
                                           for _ in range(config.num_experts))

    def forward(self, hidden):
        x = hidden.reshape(-1, hidden.shape[-1])
        logits = self.gate(x)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        chosen = scores(self.gate, logits).topk(self.top_k, dim=-1).indices
        weights = torch.softmax(wide, dim=-1).gather(1, chosen)
        if self.renormalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        kept = torch.ones_like(chosen, dtype=torch.bool)
        if self.capacity_factor > 0:
            even = self.top_k * len(x) / len(self.experts)
            kept = with_room(chosen, len(self.experts), math.ceil(even * self.capacity_factor))
            self.dropped += int((~kept).sum())
        self.chosen = chosen
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows, k = ((chosen == e) & kept).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, k, None].to(x.dtype))
        return out.reshape(hidden.shape), logits


class Block(torch.nn.Module):
    def __init__(self, config, parts, layer):
        super().__init__()
        self.input_layernorm = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.self_attn = GPT2Attention(parts, layer_idx=layer)
        self.post_attention_layernorm = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.moe = (layer + 1) % config.decoder_sparse_step == 0
        self.mlp = MoeBlock(config, parts) if self.moe else GPT2MLP(config.intermediate_size, parts)

    def forward(self, hidden, mask, cache):
        normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, past_key_values=cache, attention_mask=mask)[0]
        out = self.mlp(self.post_attention_layernorm(hidden))
        out, logits = out if self.moe else (out, None)
        return hidden + out, logits


class Trunk(torch.nn.Module):
    def __init__(self, config, parts):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = torch.nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = torch.nn.ModuleList(Block(config, parts, i) for i in range(config.num_hidden_layers))
        self.norm = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)


class Gpt2MoeForCausalLM(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.config = config = types.SimpleNamespace(**settings, architectures=None)
        parts = GPT2Config(n_embd=config.hidden_size, n_head=config.num_attention_heads, n_layer=config.num_hidden_layers,
                           activation_function=config.hidden_act, attn_pdrop=0.0, resid_pdrop=0.0)
        parts._attn_implementation = "eager"
        self.model = Trunk(config, parts)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens, past_key_values=None, use_cache=False, **_):
        cache = past_key_values if past_key_values is not None or not use_cache else DynamicCache()
        before = cache.get_seq_length() if cache is not None else 0
        count = tokens.shape[1]
        positions = self.model.embed_positions.weight[before:before + count]
        hidden = self.model.embed_tokens(tokens) + positions
        mask = torch.full((count, before + count), torch.finfo(hidden.dtype).min, dtype=hidden.dtype).triu(before + 1)
        routers = []
        for layer in self.model.layers:
            hidden, logits = layer(hidden, mask[None, None], cache)
            if logits is not None:
                routers.append(logits)
        return types.SimpleNamespace(logits=self.lm_head(self.model.norm(hidden)), past_key_values=cache,
                                     router_logits=tuple(routers))


def published(state):
    """The checkpoint's names; its matrices are [out, in], those of GPT-2's parts [in, out]."""
    out = {}
    for name, value in state.items():
        turned = value.t().contiguous() if ".c_" in name and value.dim() == 2 else value
        if ".c_attn." in name:
            for part, rows in zip("qkv", turned.chunk(3)):
                out[name.replace(".c_attn.", f".{part}_proj.")] = rows.contiguous()
        elif ".self_attn.c_proj." in name:
            out[name.replace(".c_proj.", ".o_proj.")] = turned
        else:
            out[name.replace(".c_fc.", ".up_proj.").replace(".c_proj.", ".down_proj.")] = turned
    return out


def load(path, dtype):
    with open(os.path.join(path, "config.json")) as f:
        settings = json.load(f)
    settings.pop("architectures")
    model = Gpt2MoeForCausalLM(settings)
    tensors = load_file(os.path.join(path, "model.safetensors"))
    state = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if ".c_attn." in name:
            found = torch.cat([tensors[name.replace(".c_attn.", f".{part}_proj.")] for part in "qkv"])
        else:
            found = tensors[next(iter(published({name: value})))]
        state[name] = found.t() if ".c_" in name and value.dim() == 2 else found
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert missing == (["lm_head.weight"] if model.config.tie_word_embeddings else []), missing
    return model.to(dtype).eval()
