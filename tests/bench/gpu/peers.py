#!/usr/bin/env python3
"""What others need for the same work on the same GPU, by what this Python has: lines of JSON for gpu_report.py.

A copy and a matrix product (PyTorch's, which is cuBLAS's: with ours the roofline), dense products, attention (SDPA, the best of its
backends), and MoE layers (gate and up, SwiGLU, down, and the sum by the top-k weights, with the routing given): by vLLM's fused_experts where
vLLM is installed, and by PyTorch's grouped_mm.  Answers are checked in fp32; a peer that is not here has a line that says why.

--device=cpu --tiny is for looking whether the logic holds: no times.
"""
import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

MASK = (1 << 64) - 1
SETS = 4
MODELS = {"Mixtral-8x7B": (4096, 14336, 8, 2), "Qwen3-30B-A3B": (2048, 768, 128, 8), "DeepSeek-V2-Lite": (2048, 1408, 64, 6)}
TINY = {"tiny": (64, 32, 8, 2)}
LIMIT = 1.5e-2  # ‖got - want‖ / ‖want‖ of bf16 results


def mix(x):
    """scheduler/base/split_mix.h"""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def routing(tokens, experts, top_k, number):
    """routing.cc: the chosen experts of each token, and their checksum."""
    state = number * 1000003 + tokens
    rows, checksum = [], 0
    for _ in range(tokens):
        ids = list(range(experts))
        for k in range(top_k):
            state = mix(state)
            other = k + state % (experts - k)
            ids[k], ids[other] = ids[other], ids[k]
            checksum = (checksum * 31 + ids[k]) & 0xFFFFFFFF
        rows.append(ids[:top_k])
    return rows, checksum


def say(line):
    print(json.dumps(line), flush=True)


class Layer:
    """One model's experts, and calls of one size."""

    def __init__(self, torch, device, shape):
        self.torch, self.device = torch, device
        self.hidden, self.ffn, self.experts, self.top_k = shape
        self.dtype = torch.bfloat16
        generator = torch.Generator(device=device).manual_seed(1)

        def draw(*size):
            return ((torch.rand(size, generator=generator, device=device) - 0.5) / 2).to(self.dtype)

        self.draw = draw
        self.gate_up = torch.stack([draw(2 * self.ffn, self.hidden) for _ in range(self.experts)])  # [E, 2F, H]
        self.down = torch.stack([draw(self.hidden, self.ffn) for _ in range(self.experts)])  # [E, H, F]

    def calls(self, tokens):
        torch, calls, checksum = self.torch, [], 0
        top_k = self.top_k
        weight = [2 * (top_k - k) / (top_k * (top_k + 1)) for k in range(top_k)]
        for number in range(SETS):
            rows, one = routing(tokens, self.experts, top_k, number)
            checksum = (checksum * 31 + one) & 0xFFFFFFFF
            calls.append({"x": self.draw(tokens, self.hidden),
                          "idx": torch.tensor(rows, dtype=torch.int32, device=self.device),
                          "weight": torch.tensor([weight] * tokens, dtype=torch.float32, device=self.device)})
        return calls, checksum

    def difference(self, call, got):
        """Of a few tokens, against fp32."""
        torch = self.torch
        tokens = call["x"].shape[0]
        error = norm = 0.0
        for t in sorted({0, tokens // 2, tokens - 1}):
            row, want = call["x"][t].float(), torch.zeros(self.hidden, device=self.device)
            for k in range(self.top_k):
                e = int(call["idx"][t, k])
                gate, up = (self.gate_up[e].float() @ row).chunk(2)
                want += call["weight"][t, k] * (self.down[e].float() @ (torch.nn.functional.silu(gate) * up))
            error += float((got[t].float() - want).square().sum())
            norm += float(want.square().sum())
        return math.sqrt(error / norm)


def device_seconds(torch, calls, run, quick):
    """Median of replayed graphs of all sets, over their number: as bench.cc."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls * 2:
            run(call)
    stream.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        begin.record()
        for call in calls:
            run(call)
        end.record()
    stream.synchronize()
    passes = min(64, max(1, int(2 / max(begin.elapsed_time(end), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(passes):
            for call in calls:
                run(call)
    times = []
    for repeat in range(6 if quick else 22):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / (passes * len(calls)))
    return statistics.median(times[1:])


class TorchPeer:
    """Sort by expert, grouped matmul, SwiGLU, grouped matmul, weighted sum by index_add."""

    def __init__(self, torch):
        self.torch = torch
        self.name = f"torch {torch.__version__} grouped_mm"
        public = getattr(torch.nn.functional, "grouped_mm", None)
        self.product = public or getattr(torch, "_grouped_mm", None)
        if self.product is None:
            raise RuntimeError("this torch has neither nn.functional.grouped_mm nor _grouped_mm")

    def prepare(self, layer, tokens, calls, quick):
        torch = self.torch
        gate_up, down = layer.gate_up.transpose(1, 2), layer.down.transpose(1, 2)  # [E, k, n]
        bounds = torch.arange(1, layer.experts + 1, device=layer.device, dtype=torch.int32)

        def run(call):
            flat, order = torch.sort(call["idx"].view(-1), stable=True)
            token = order // layer.top_k
            ends = torch.searchsorted(flat, bounds, right=False).to(torch.int32)
            gate, up = self.product(call["x"][token], gate_up, offs=ends).chunk(2, dim=-1)
            y = self.product(torch.nn.functional.silu(gate) * up, down, offs=ends)
            out = torch.zeros(call["x"].shape, dtype=torch.float32, device=layer.device)
            return out.index_add_(0, token, y.float() * call["weight"].view(-1)[order].unsqueeze(1))

        return run, {}


class VllmPeer:
    """vLLM's fused MoE, its sorting included, with the block sizes that it has for this GPU."""

    def __init__(self, torch):
        import vllm
        from vllm.model_executor.layers.fused_moe import fused_experts
        self.fused_experts = fused_experts
        self.name = f"vllm {vllm.__version__} fused_experts"

    def prepare(self, layer, tokens, calls, quick):
        return lambda call: self.fused_experts(call["x"], layer.gate_up, layer.down, call["weight"], call["idx"]), {}


def measure(torch, peer, layer, model, tokens, options):
    calls, checksum = layer.calls(tokens)
    run, more = peer.prepare(layer, tokens, calls, options.quick)
    difference = layer.difference(calls[0], run(calls[0]))
    line = {"kind": "moe_peer", "peer": peer.name, "model": model, "tokens": tokens, "routing": checksum, "tiny": options.tiny,
            "difference": difference, **more}
    if not difference <= LIMIT:
        say({**line, "seconds": None, "wrong": True})
        return False
    say({**line, "seconds": None if options.tiny else device_seconds(torch, calls, run, options.quick)})
    return True


def moe_peers(torch, options, end):
    peers, good = [], True
    for name, make in (("torch grouped_mm", TorchPeer), ("vllm fused_experts", VllmPeer)):
        try:
            peers.append(make(torch))
        except Exception as error:
            say({"kind": "peer_missing", "peer": name, "reason": f"{type(error).__name__}: {error}"})
    for model, shape in (TINY if options.tiny else MODELS).items():
        layer = Layer(torch, options.device, shape)
        for tokens in [1, 5] if options.tiny else [2 ** i for i in range(14)]:
            for peer in peers:
                if time.monotonic() > end:
                    say({"kind": "left_out", "what": f"peer {peer.name} {model} T={tokens}"})
                    continue
                try:
                    good &= measure(torch, peer, layer, model, tokens, options)
                except Exception as error:
                    say({"kind": "peer_missing", "peer": peer.name, "model": model, "tokens": tokens,
                         "reason": f"{type(error).__name__}: {str(error)[:300]}"})
        del layer
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--tiny", action="store_true", help="small shapes, no times")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1e9, help="what would begin later is left out")
    parser.add_argument("--routing", nargs=4, type=int, metavar=("TOKENS", "EXPERTS", "TOP_K", "SET"),
                        help="only print that routing's checksum")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    if options.routing:
        print(routing(*options.routing)[1])
        return 0
    try:
        import torch
    except ImportError as error:
        say({"kind": "peer_missing", "peer": "torch", "reason": str(error)})
        return 0
    from op_peers import op_peers
    good = op_peers(torch, options, end, say, device_seconds)
    return 0 if moe_peers(torch, options, end) and good else 1


if __name__ == "__main__":
    sys.exit(main())
