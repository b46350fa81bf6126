"""The Triton kernel of vLLM's fused MoE as a peer of moe_peers.py: its source is read from a wheel at run time, nothing of vLLM is
imported, and its block sizes are tuned here."""
import ast
import importlib.util
import inspect
import itertools
import re
import zipfile
from pathlib import Path


def kernel_source(wheel):
    """fused_moe_kernel and the functions that it calls, as a module's text; and the version.  Nothing of vLLM is imported."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        version = re.search(r"vllm-([^-/]+)", Path(wheel).name)
        for name in names:
            if not re.match(r"vllm/model_executor/layers/fused_moe/.*\.py$", name):
                continue
            text = archive.read(name).decode()
            if re.search(r"^def fused_moe_kernel\(", text, re.M):
                return cut(text), (version.group(1) if version else "of unknown version"), name
    raise RuntimeError(f"{wheel}: no fused_moe_kernel in vllm/model_executor/layers/fused_moe")


def cut(text):
    """The jitted functions that the kernel needs."""
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    wanted, queue = [], ["fused_moe_kernel"]
    while queue:
        name = queue.pop()
        if name in wanted:
            continue
        wanted.append(name)
        used = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        queue += sorted(used & functions.keys())
    lines = text.splitlines()
    parts = ["import triton\nimport triton.language as tl\n"]
    for name in reversed(wanted):
        node = functions[name]
        first = min([node.lineno] + [decorator.lineno for decorator in node.decorator_list])
        parts.append("\n".join(lines[first - 1:node.end_lineno]) + "\n")
    return "\n\n".join(parts)


SILU = '''
import triton
import triton.language as tl


@triton.jit
def silu_and_mul(x, y, ffn, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x + row * 2 * ffn + column, mask=column < ffn, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * ffn + ffn + column, mask=column < ffn, other=0.0).to(tl.float32)
    tl.store(y + row * ffn + column, (gate / (1 + tl.exp(-gate)) * up).to(y.dtype.element_ty), mask=column < ffn)
'''


def load(folder, name, text):
    path = Path(folder) / f"{name}.py"  # Triton reads a kernel's source from its file
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class VllmPeer:
    """Two launches of fused_moe_kernel with SwiGLU between and a sum behind.  The rows' order by expert is made by a CUDA
    kernel in vLLM; here it is made before and costs nothing, which favours the peer."""

    def __init__(self, torch, wheel, folder):
        import triton
        import triton.language as tl
        self.torch, self.triton, self.tl = torch, triton, tl
        text, version, self.path = kernel_source(wheel)
        self.name = f"vllm {version} fused_moe_kernel (triton {triton.__version__}, without its sorting)"
        self.kernel = load(folder, "vllm_fused_moe_kernel", text).fused_moe_kernel
        self.silu = load(folder, "silu_and_mul", SILU).silu_and_mul
        self.parameters = inspect.signature(self.kernel.fn).parameters

    # --- one launch: arguments by name, as they differ between versions
    def launch(self, a, b, c, call, config, align, rows_per_token, weigh):
        sorted_ids, expert_ids, padded = align
        rows, n, k = call["idx"].numel(), b.shape[1], b.shape[2]
        em = min(sorted_ids.numel(), rows * config["BLOCK_SIZE_M"])
        compute = self.tl.float16 if a.dtype == self.torch.float16 else self.tl.bfloat16
        known = {
            "a_ptr": a, "b_ptr": b, "c_ptr": c, "b_bias_ptr": None, "a_scale_ptr": None, "b_scale_ptr": None,
            "topk_weights_ptr": call["weight"], "sorted_token_ids_ptr": sorted_ids, "expert_ids_ptr": expert_ids,
            "num_tokens_post_padded_ptr": padded, "N": n, "K": k, "EM": em, "num_valid_tokens": rows,
            "stride_am": a.stride(0), "stride_ak": a.stride(1), "stride_be": b.stride(0), "stride_bk": b.stride(2),
            "stride_bn": b.stride(1), "stride_cm": c.stride(0), "stride_cn": c.stride(1), "group_n": 0, "group_k": 0,
            "MUL_ROUTED_WEIGHT": weigh, "top_k": rows_per_token, "compute_type": compute, "SPLIT_K": 1,
            **{key: value for key, value in config.items() if key.isupper()},
        }
        off = ("use_", "per_channel_quant", "HAS_BIAS", "naive_block_assignment")
        arguments = {}
        for name in self.parameters:
            if name in known:
                arguments[name] = known[name]
            elif name.startswith("stride_"):
                arguments[name] = 0  # of scales and bias
            elif name.startswith(off):
                arguments[name] = False
            elif self.parameters[name].default is inspect.Parameter.empty:
                raise RuntimeError(f"{self.path}: fused_moe_kernel has an argument {name}, which moe_peers.py does not know")
        grid = (self.triton.cdiv(em, config["BLOCK_SIZE_M"]) * self.triton.cdiv(n, config["BLOCK_SIZE_N"]),)
        self.kernel[grid](**arguments, num_warps=config["num_warps"], num_stages=config["num_stages"])

    def align(self, layer, call, block):
        """Rows by expert, each expert's padded to whole blocks by an index past the end."""
        torch = self.torch
        idx = call["idx"].view(-1).tolist()
        of_expert = [[] for _ in range(layer.experts)]
        for row, expert in enumerate(idx):
            of_expert[expert].append(row)
        ids, experts = [], []
        for expert, rows in enumerate(of_expert):
            padded = -(-len(rows) // block) * block
            ids += rows + [len(idx)] * (padded - len(rows))
            experts += [expert] * (padded // block)
        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device=layer.device)
        return ints(ids), ints(experts), ints([len(ids)])

    def runner(self, layer, tokens, calls, first, second):
        torch, ffn = self.torch, layer.ffn
        rows = tokens * layer.top_k
        for call in calls:
            for config in (first, second):
                block = config["BLOCK_SIZE_M"]
                if ("align", block) not in call:
                    call["align", block] = self.align(layer, call, block)
        both = torch.empty(rows, 2 * ffn, dtype=layer.dtype, device=layer.device)
        hidden = torch.empty(rows, ffn, dtype=layer.dtype, device=layer.device)
        y = torch.empty(rows, layer.hidden, dtype=layer.dtype, device=layer.device)

        def run(call):
            self.launch(call["x"], layer.gate_up, both, call, first, call["align", first["BLOCK_SIZE_M"]], layer.top_k, False)
            self.silu[(rows, self.triton.cdiv(ffn, 1024))](both, hidden, ffn, BLOCK=1024)
            self.launch(hidden, layer.down, y, call, second, call["align", second["BLOCK_SIZE_M"]], 1, True)
            return y.view(tokens, layer.top_k, layer.hidden).sum(dim=1)

        return run

    @staticmethod
    def grid(tokens, layer, quick):
        """Block sizes around those of the tables that vLLM carries for Hopper.  Few: each is compiled once for every model."""
        rows_each = tokens * layer.top_k / layer.experts
        if rows_each <= 4:
            sizes = itertools.product([16], [64, 128], [64, 128], [1], [4], [3, 4])
        elif rows_each <= 48:
            sizes = itertools.product([16, 64], [64, 128], [64, 128], [1], [4], [3])
        else:
            sizes = itertools.product([64, 128], [128, 256], [64], [1, 16], [4, 8], [3])
        names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
        configs = [dict(zip(names, size)) for size in sizes if size[0] * size[1] // size[4] <= 4096]
        return configs[::4] if quick else configs

    def prepare(self, layer, tokens, calls, quick):
        if layer.device == "cpu":
            config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_warps": 4,
                      "num_stages": 1}
            return self.runner(layer, tokens, calls, config, config), {}
        best = [None, None]
        for half in (0, 1):  # the two products apart, which is more than vLLM's own tuning does
            for config in self.grid(tokens, layer, quick):
                pair = [best[0] or config, best[1] or config]
                pair[half] = config
                try:
                    run = self.runner(layer, tokens, calls, *pair)
                    seconds = self.quick_seconds(calls, run)
                except Exception as error:  # of Triton: too much shared memory, a shape that it refuses
                    if "out of resource" not in str(error).lower():
                        raise
                    continue
                if best[half] is None or seconds < best[half]["seconds"]:
                    best[half] = {**config, "seconds": seconds}
        configs = [{key: value for key, value in config.items() if key != "seconds"} for config in best]
        return self.runner(layer, tokens, calls, *configs), {"configs": configs}

    def quick_seconds(self, calls, run):
        torch = self.torch
        for call in calls:
            run(call)
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        times = []
        for _ in range(3):
            begin.record()
            for call in calls:
                run(call)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return min(times)
