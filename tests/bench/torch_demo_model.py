"""A small Qwen3-MoE in plain PyTorch, written for training on a CPU: bf16 matrix products (AMX where the processor
has it), fp32 master weights, elementwise chains fused by torch.compile, experts run on contiguous rows.

The arithmetic is that of HF's Qwen3MoeForCausalLM.
Shapes: T tokens of a batch (B sequences of S), H hidden, N heads, Nkv kv heads, D head dim, E experts, K chosen,
F expert width, V vocabulary.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab_size: int = 6144
    hidden_size: int = 192
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 16
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 96
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    def to_dict(self) -> dict:
        return asdict(self)


def maybe_compile(function):
    """torch.compile, unless `set_compile(False)` came first: then the function runs as written."""
    compiled = torch.compile(function, dynamic=False)

    def call(*args):
        return (compiled if _COMPILE[0] else function)(*args)
    return call


_COMPILE = [False]


def set_compile(enabled: bool) -> None:
    _COMPILE[0] = enabled


def rms_norm(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x, cos, sin):
    """x [T, N, D]; the halves of D are the pairs, as HF has it."""
    x1, x2 = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).to(x.dtype)


@maybe_compile
def before_attention(x, norms, w_qkv, rotary, num_heads, eps):
    """x [T, H] -> q [T, N, D], k and v [T, Nkv, D]; norms of x, q and k; w_qkv [(N + 2 Nkv) D, H]."""
    norm, q_norm, k_norm = norms
    heads = F.linear(rms_norm(x, norm, eps), w_qkv.to(x.dtype)).unflatten(-1, (-1, q_norm.shape[0]))
    kv = (heads.shape[1] - num_heads) // 2
    q, k, v = heads.split([num_heads, kv, kv], 1)
    return rotate(rms_norm(q, q_norm, eps), *rotary), rotate(rms_norm(k, k_norm, eps), *rotary), v.contiguous()


@maybe_compile
def after_attention(x, attention, w_o, norm, w_router, eps):
    """Adds the attention's output; returns x [T, H], its norm [T, H] and router probabilities [T, E] fp32."""
    x = x + F.linear(attention, w_o.to(x.dtype))
    h = rms_norm(x, norm, eps)
    return x, h, F.linear(h.float(), w_router).softmax(-1)


@maybe_compile
def swiglu(gate_up):
    gate, up = gate_up.float().chunk(2, -1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


@maybe_compile
def swiglu_backward(gate_up, d_out):
    gate, up = gate_up.float().chunk(2, -1)
    d_out = d_out.float()
    sigmoid = torch.sigmoid(gate)
    d_gate = d_out * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat([d_gate, d_out * gate * sigmoid], -1).to(gate_up.dtype)


@maybe_compile
def weighted_sum(y, weights):
    """y [T, K, H], weights [T, K] -> [T, H]."""
    return (y.float() * weights[:, :, None]).sum(1).to(y.dtype)


@maybe_compile
def weighted_sum_backward(y, weights, d_out):
    d_out = d_out.float()[:, None]
    return (d_out * weights[:, :, None]).to(y.dtype), (d_out * y.float()).sum(-1)


@maybe_compile
def score_gradient(scores, log_sum, d_probs, delta, scale: float, first_row: int):
    """Scores [b, s, S] of query rows from `first_row` on -> probabilities and the gradient by the scores."""
    rows = torch.arange(scores.shape[1])[:, None] + first_row
    seen = torch.arange(scores.shape[2])[None] <= rows
    probs = torch.where(seen, torch.exp(scores.float() * scale - log_sum[..., None]), 0.0)
    d_scores = probs * (d_probs.float() - delta[..., None]) * scale
    return probs.to(scores.dtype), d_scores.to(scores.dtype)


class CausalAttention(torch.autograd.Function):
    """PyTorch's CPU flash attention, with a backward of batched products (its own took twice as long)."""

    BLOCK = 256  # query rows at once: keys after the block's last row are never touched

    @staticmethod
    def forward(ctx, q, k, v):
        """q, k, v [B, N, S, D] -> [B, N, S, D]."""
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        ctx.save_for_backward(q, k, v, out, log_sum)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, log_sum = ctx.saved_tensors
        scale, size = q.shape[-1] ** -0.5, q.shape[2]
        delta = (d_out.float() * out.float()).sum(-1).flatten(0, 1)  # [B * N, S]
        log_sum = log_sum.reshape(delta.shape)
        q, k, v, d_out = (t.reshape(-1, size, q.shape[-1]) for t in (q, k, v, d_out))
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for first in range(0, size, CausalAttention.BLOCK):
            last = min(first + CausalAttention.BLOCK, size)
            rows, keys = (slice(None), slice(first, last)), (slice(None), slice(0, last))
            probs, d_scores = score_gradient(
                q[rows] @ k[keys].transpose(1, 2), log_sum[rows], d_out[rows] @ v[keys].transpose(1, 2), delta[rows],
                scale, first)
            d_v[keys] += probs.transpose(1, 2) @ d_out[rows]
            d_q[rows] = d_scores @ k[keys]
            d_k[keys] += d_scores.transpose(1, 2) @ q[rows]
        return tuple(t.view(out.shape) for t in (d_q, d_k, d_v))


class Experts(torch.autograd.Function):
    """SwiGLU experts on rows sorted by expert: one product per expert and matrix, nothing dropped.

    An expert's rows are padded with zero rows to a multiple of ROUND: oneDNN generates code for each new shape, and
    with free row counts every product would be a new one (that took three times as long as the products).
    """

    ROUND = 64

    @staticmethod
    def layout(chosen, num_experts: int):
        """chosen [T, K] -> place [T * K] of each choice among the padded rows, and spans [(begin, end)] by expert."""
        flat = chosen.flatten()
        counts = torch.bincount(flat, minlength=num_experts)
        room = (counts + Experts.ROUND - 1) // Experts.ROUND * Experts.ROUND
        order = flat.argsort(stable=True)
        shift = (room.cumsum(0) - room) - (counts.cumsum(0) - counts)  # padding before an expert's rows
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel()) + shift[flat[order]]
        ends = room.cumsum(0).tolist()
        return place, list(zip([0] + ends[:-1], ends))

    @staticmethod
    def spread(values, place, num_experts: int):
        """Rows [T * K, width] to their places; [T * K + E * ROUND, width], a size that does not vary."""
        rows = values.new_zeros(place.numel() + num_experts * Experts.ROUND, values.shape[-1])
        return rows.index_copy_(0, place, values)

    @staticmethod
    def forward(ctx, x, chosen, weights, w_gate_up, w_down):
        """x [T, H], chosen [T, K] int64, weights [T, K] fp32, w_gate_up [E, 2F, H], w_down [E, H, F] in x's dtype."""
        place, spans = Experts.layout(chosen, w_down.shape[0])
        rows = Experts.spread(x.repeat_interleave(chosen.shape[1], 0), place, len(spans))
        gate_up = rows.new_empty(rows.shape[0], w_gate_up.shape[1])
        for e, (begin, end) in enumerate(spans):
            torch.mm(rows[begin:end], w_gate_up[e].t(), out=gate_up[begin:end])
        hidden = swiglu(gate_up)
        sorted_y = torch.empty_like(rows)
        for e, (begin, end) in enumerate(spans):
            torch.mm(hidden[begin:end], w_down[e].t(), out=sorted_y[begin:end])
        y = sorted_y.index_select(0, place).view(*chosen.shape, -1)  # [T, K, H]
        ctx.save_for_backward(rows, gate_up, hidden, y, weights, place, w_gate_up, w_down)
        ctx.spans = spans
        return weighted_sum(y, weights)

    @staticmethod
    def backward(ctx, d_out):
        rows, gate_up, hidden, y, weights, place, w_gate_up, w_down = ctx.saved_tensors
        d_y, d_weights = weighted_sum_backward(y, weights, d_out.contiguous())
        d_sorted = Experts.spread(d_y.flatten(0, 1), place, len(ctx.spans))
        d_hidden, d_down = torch.empty_like(hidden), torch.empty_like(w_down)
        for e, (begin, end) in enumerate(ctx.spans):
            torch.mm(d_sorted[begin:end], w_down[e], out=d_hidden[begin:end])
            torch.mm(d_sorted[begin:end].t(), hidden[begin:end], out=d_down[e])
        d_gate_up = swiglu_backward(gate_up, d_hidden)
        d_rows, d_w_gate_up = torch.empty_like(rows), torch.empty_like(w_gate_up)
        for e, (begin, end) in enumerate(ctx.spans):
            torch.mm(d_gate_up[begin:end], w_gate_up[e], out=d_rows[begin:end])
            torch.mm(d_gate_up[begin:end].t(), rows[begin:end], out=d_w_gate_up[e])
        d_x = d_rows.index_select(0, place).view_as(y).sum(1)
        return d_x, None, d_weights, d_w_gate_up, d_down


@maybe_compile
def cross_entropy_rows(logits, targets):
    """logits [t, V], targets [t]: the summed loss (fp32) and its gradient by the logits in their dtype."""
    z = logits.float()
    log_sum = z.logsumexp(-1, keepdim=True)
    hit = torch.arange(z.shape[1])[None] == targets[:, None]
    loss = (log_sum.squeeze(-1) - torch.where(hit, z, 0.0).sum(-1)).sum()
    return loss, (torch.exp(z - log_sum) - hit.float()).to(logits.dtype)


class TiedLoss(torch.autograd.Function):
    """Mean cross entropy of h @ embedding^T, computed chunk by chunk: the [T, V] logits never exist at once."""

    CHUNK = 1024

    @staticmethod
    def forward(ctx, h, embedding, targets):
        total, d_h, d_embedding = 0.0, torch.empty_like(h), torch.zeros(embedding.shape, dtype=torch.float32)
        for start in range(0, h.shape[0], TiedLoss.CHUNK):
            part = slice(start, start + TiedLoss.CHUNK)
            loss, d_logits = cross_entropy_rows(h[part] @ embedding.t(), targets[part])
            total += loss
            d_h[part] = d_logits @ embedding
            d_embedding += d_logits.t() @ h[part]
        ctx.save_for_backward(d_h / h.shape[0], d_embedding / h.shape[0])
        return total / h.shape[0]

    @staticmethod
    def backward(ctx, d_loss):
        d_h, d_embedding = ctx.saved_tensors
        return d_h * d_loss.to(d_h.dtype), d_embedding * d_loss, None


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        out_std = 0.02 / math.sqrt(2 * c.num_hidden_layers)

        def weight(*shape, std=0.02):
            return nn.Parameter(torch.randn(*shape) * std)
        self.config = c
        self.norm1, self.norm2 = nn.Parameter(torch.ones(c.hidden_size)), nn.Parameter(torch.ones(c.hidden_size))
        self.q_norm, self.k_norm = nn.Parameter(torch.ones(c.head_dim)), nn.Parameter(torch.ones(c.head_dim))
        self.w_qkv = weight(q + 2 * kv, c.hidden_size)
        self.w_o = weight(c.hidden_size, q, std=out_std)
        self.w_router = weight(c.num_experts, c.hidden_size)
        self.w_gate_up = weight(c.num_experts, 2 * c.moe_intermediate_size, c.hidden_size)
        self.w_down = weight(c.num_experts, c.hidden_size, c.moe_intermediate_size, std=out_std)

    def forward(self, x, rotary, batch: int):
        """x [T, H] of `batch` sequences; returns x, this layer's balance loss, and chosen experts [T, K]."""
        c = self.config
        q, k, v = before_attention(x, (self.norm1, self.q_norm, self.k_norm), self.w_qkv, rotary,
                                   c.num_attention_heads, c.rms_norm_eps)
        q, k, v = (t.view(batch, -1, t.shape[1], c.head_dim).transpose(1, 2) for t in (q, k, v))
        groups = c.num_attention_heads // c.num_key_value_heads
        attention = CausalAttention.apply(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
        attention = attention.transpose(1, 2).reshape(x.shape[0], -1)
        x, h, probs = after_attention(x, attention, self.w_o, self.norm2, self.w_router, c.rms_norm_eps)
        weights, chosen = probs.topk(c.num_experts_per_tok, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = Experts.apply(h, chosen, weights, self.w_gate_up.to(x.dtype), self.w_down.to(x.dtype))
        # Switch's balance loss, of this layer alone: 1.0 when even.
        used = torch.bincount(chosen.flatten(), minlength=c.num_experts) / chosen.numel()
        return x + y, c.num_experts * (used * probs.mean(0)).sum(), chosen


class Model(nn.Module):
    def __init__(self, config: Config, dtype=torch.bfloat16):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.embedding = nn.Parameter(torch.randn(config.vocab_size, config.hidden_size) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(config.hidden_size))

    def hidden(self, ids):
        """ids [B, S] -> normed hidden [T, H], balance losses [L], chosen experts [L, T, K]."""
        c = self.config
        frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = torch.outer(torch.arange(ids.shape[1]).float(), frequency).repeat(ids.shape[0], 1)  # [T, D / 2]
        rotary = angle.cos(), angle.sin()
        x = F.embedding(ids.flatten(), self.embedding).to(self.dtype)
        balance, chosen = [], []
        for layer in self.layers:
            x, layer_balance, layer_chosen = layer(x, rotary, ids.shape[0])
            balance.append(layer_balance)
            chosen.append(layer_chosen)
        return rms_norm(x, self.norm, c.rms_norm_eps), torch.stack(balance), torch.stack(chosen)

    def loss(self, ids, targets):
        """Returns the mean cross entropy, balance losses [L] and chosen experts [L, T, K]."""
        h, balance, chosen = self.hidden(ids)
        return TiedLoss.apply(h, self.embedding.to(self.dtype), targets.flatten()), balance, chosen

    @torch.no_grad()
    def logits(self, ids):
        h, _, chosen = self.hidden(ids)
        return (h @ self.embedding.to(self.dtype).t()).float().view(*ids.shape, -1), chosen
