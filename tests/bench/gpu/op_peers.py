"""PyTorch's copy, matrix products and attention at the shapes of product_benches.cc and attention_benches.cc, for peers.py."""
import time

ROTATED_BYTES = 192 << 20  # as bench.cc: what takes turns is more than a cache holds
LIMIT = 1.5e-2  # ‖got - want‖ / ‖want‖ of bf16 results
HEADS, KV_HEADS, DIM = 32, 4, 128
# name, sequences, rows of each, keys before them
SCENES = [("decode", 1, 1, 4095), ("decode", 32, 1, 4095), ("decode", 256, 1, 1023), ("prefill", 1, 4096, 0), ("prefill", 8, 1024, 0),
          ("chunk", 4, 512, 3584)]


def products():
    for m in (1, 32, 8192):
        yield "gemm qkv", m, 5120, 2048
        yield "gemm o", m, 2048, 4096
        if m <= 64:
            yield "gemm lm_head", m, 151936, 2048


class OpPeers:
    def __init__(self, torch, options, say, device_seconds):
        self.torch, self.options, self.say, self.device_seconds = torch, options, say, device_seconds
        self.good = True

    def draw(self, *size):
        return ((self.torch.rand(size, device=self.options.device) - 0.5) / 2).to(self.torch.bfloat16)

    def sets(self, elements):
        return 2 if self.options.tiny else max(2, min(32, ROTATED_BYTES // (2 * elements)))

    def seconds(self, calls, run):
        return None if self.options.tiny else self.device_seconds(self.torch, calls, run, self.options.quick)

    def line(self, line, got, want, calls, run):
        """Checks and times one; a wrong answer has no time."""
        difference = float((got.float() - want.float()).norm() / want.float().norm())
        line = {**line, "tiny": self.options.tiny, "difference": difference}
        if difference <= LIMIT:
            self.say({**line, "seconds": self.seconds(calls, run)})
        else:
            self.good = False
            self.say({**line, "seconds": None, "wrong": True})

    def ceilings(self):
        torch, tiny = self.torch, self.options.tiny
        source = self.draw(1 << 8 if tiny else 1 << 28)  # 512 MiB
        to = torch.empty_like(source)
        self.say({"kind": "copy", "by": "torch", "tiny": tiny, "bytes": 2 * source.nbytes, "seconds": self.seconds([0], lambda _: to.copy_(source))})
        side = 64 if tiny else 8192
        x, w = self.draw(side, side), self.draw(side, side)
        got = torch.matmul(x, w.t())
        self.line({"kind": "gemm", "by": "torch", "side": side, "flops": 2.0 * side ** 3}, got[:4], x[:4].float() @ w.float().t(), [0],
                  lambda _: torch.matmul(x, w.t(), out=got))

    def product(self, name, m, n, k):
        torch = self.torch
        if self.options.tiny:
            m, n, k = min(m, 9), 48, 32
        calls = [(self.draw(m, k), self.draw(n, k), torch.empty(m, n, dtype=torch.bfloat16, device=self.options.device))
                 for _ in range(self.sets(m * k + n * k + m * n))]
        x, w, _ = calls[0]
        self.line({"kind": "op_peer", "peer": "cuBLAS", "op": name, "shape": f"M={m} N={n} K={k}"}, torch.matmul(x, w.t())[:4],
                  x[:4].float() @ w.float().t(), calls, lambda call: torch.matmul(call[0], call[1].t(), out=call[2]))

    def attention(self, name, sequences, rows, before):
        """SDPA over keys and values that lie in a row, which is less work than over blocks: that favours the peer."""
        torch = self.torch
        if self.options.tiny:
            rows, before = min(rows, 6), min(before, 3)
        keys = before + rows
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right
        calls = [tuple(self.draw(sequences, heads, length, DIM) for heads, length in ((HEADS, rows), (KV_HEADS, keys), (KV_HEADS, keys)))
                 for _ in range(self.sets(2 * sequences * (HEADS * rows + KV_HEADS * keys) * DIM))]
        mask = None if rows == 1 or rows == keys else causal_lower_right(rows, keys)

        def run(call):
            return torch.nn.functional.scaled_dot_product_attention(*call, attn_mask=mask, is_causal=1 < rows == keys, scale=10.0, enable_gqa=True)

        q, k, v = (part[:1, :, -1:] if i == 0 else part[:1].repeat_interleave(HEADS // KV_HEADS, 1) for i, part in enumerate(calls[0]))
        want = torch.softmax(10.0 * q.float() @ k.float().transpose(2, 3), -1) @ v.float()  # the last row sees every key
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
            if backend == SDPBackend.MATH and not self.options.tiny:
                continue
            shape = f"B={sequences} rows={rows} keys={keys}"
            peer = f"SDPA {backend.name.split('_')[0].lower()}"
            try:
                with sdpa_kernel(backend):
                    self.line({"kind": "op_peer", "peer": peer, "op": f"attention {name}", "shape": shape}, run(calls[0])[:1, :, -1:], want, calls, run)
            except RuntimeError as error:
                self.say({"kind": "peer_missing", "peer": peer, "what": f"attention {name} {shape}", "reason": str(error)[:200]})


def op_peers(torch, options, end, say, device_seconds):
    """True unless an answer was wrong."""
    peers = OpPeers(torch, options, say, device_seconds)
    work = [(peers.ceilings, ())] + [(peers.product, shape) for shape in products()] + [(peers.attention, scene) for scene in SCENES]
    for run, arguments in work:
        what = " ".join(str(part) for part in (run.__name__, *arguments))
        if time.monotonic() > end:
            say({"kind": "left_out", "what": f"peer {what}"})
            continue
        try:
            run(*arguments)
        except Exception as error:  # the others still run
            say({"kind": "peer_missing", "peer": "torch", "what": what, "reason": f"{type(error).__name__}: {str(error)[:200]}"})
    return peers.good
