"""How fast a decode step could be on this machine: the sum over its operations of max(bytes / bandwidth, FLOP / rate).

Bytes: each weight that is touched, once, and the keys and values that attention reads.  Bandwidth: what a loop that
only reads gets at that moment.  Rate: oneDNN's (through torch) at that shape, the matrix in the cache if it fits.
"""
import time

import olmoe_checkpoint as shape

PROBE_ELEMENTS = 256 << 20  # of fp32: 1 GiB, more than any cache
BF16 = 2


class Probe:
    """Read bandwidth in bytes per second, now."""

    def __init__(self, threads):
        import numpy
        import torch

        torch.set_num_threads(threads)
        self._data = torch.from_numpy(numpy.ones(PROBE_ELEMENTS, numpy.float32))  # numpy asks for huge pages, torch not

    def __call__(self):
        start = time.perf_counter()
        self._data.sum()
        return self._data.numel() * 4 / (time.perf_counter() - start)


def onednn_rates(ops):
    """FLOP per second at the (rows, n, k) of decode_ops(): the better of plain and pre-packed weights, best of 12."""
    import torch

    rates = {}
    for n, k in sorted({op[3:] for op in ops if op[1]}):
        weight = torch.randn(n, k).bfloat16()
        for rows in sorted({op[2] for op in ops if op[3:] == (n, k)}):
            x = torch.randn(rows, k).bfloat16()
            calls = [lambda: torch.nn.functional.linear(x, weight)]
            if packed := _pack(weight, rows):
                calls.append(lambda: torch.ops.mkldnn._linear_pointwise(x, packed[0], None, "none", [], ""))
            rates[rows, n, k] = 2 * rows * n * k / min(_best_seconds(call) for call in calls)
    return rates


def _pack(weight, rows):
    """[the weight as oneDNN likes it best], or [] where this torch has no such operation (it is a private one)."""
    import torch

    try:
        with torch.inference_mode():
            return [torch.ops.mkldnn._reorder_linear_weight(weight, rows)]
    except (AttributeError, RuntimeError, NotImplementedError):
        return []


def _best_seconds(call):
    import torch

    times = []
    with torch.inference_mode():
        for _ in range(12):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return min(times)


def routed_rows(experts_of_rows):
    """Rows per touched expert of one step and layer.  experts_of_rows: [rows][K]."""
    count = {}
    for row in experts_of_rows:
        for expert in row:
            count[expert] = count.get(expert, 0) + 1
    return sorted(count.values())


def uniform_rows(rows):
    """The same, expected for uniform routing: the touched experts share the pairs evenly, to whole rows."""
    touched = round(shape.EXPERTS * (1 - (1 - shape.TOP_K / shape.EXPERTS) ** rows))
    pairs = rows * shape.TOP_K
    return sorted(pairs // touched + (i < pairs % touched) for i in range(touched))


def decode_ops(rows, context, layers):
    """(bytes, FLOP, rows, n, k) of each matrix product, and of attention with no shape.

    rows: sequences; context: mean tokens before each; layers: per layer, the rows of each touched expert.
    """
    def product(m, n, k):
        return (BF16 * n * k, 2 * m * n * k, m, n, k)

    ops = []
    for experts in layers:
        ops += [product(rows, shape.HIDDEN, shape.HIDDEN)] * 4
        ops.append((BF16 * 2 * rows * context * shape.HIDDEN, 0, 0, 0, 0))
        ops.append(product(rows, shape.EXPERTS, shape.HIDDEN))
        for m in experts:
            ops += [product(m, shape.EXPERT_HIDDEN, shape.HIDDEN)] * 2
            ops.append(product(m, shape.HIDDEN, shape.EXPERT_HIDDEN))
    ops.append(product(rows, shape.VOCAB, shape.HIDDEN))
    return ops


def bound_seconds(ops, bandwidth, rates):
    """(with oneDNN's rates, by bytes alone)"""
    by_bytes = sum(op[0] for op in ops) / bandwidth
    both = sum(max(size / bandwidth, flop / rates[m, n, k] if flop else 0) for size, flop, m, n, k in ops)
    return both, by_bytes
