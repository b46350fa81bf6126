"""What is made of the lines that training workers write: times of steps by mode, and the figures beside the paper's rows."""
from statistics import mean, median

import report

LEAST_R2 = 0.99
UNDER = 0.5  # of what an all-to-all takes by itself that a sum must be under way for it to be "under a sum"


class Refused(RuntimeError):
    """The links are not what they should be."""


def split_lines(lines_of_ranks):
    """(paths by mode, exposed ms of the critical path by packing, modes that are not built, decisions of the packing of full,
    {kind: [(line of each rank)]})"""
    first = lines_of_ranks[0]
    paths = {line["path"]: line for line in first if "path" in line}
    packings = {line["packing"]: line["exposed_ms"] for line in first if "exposed_ms" in line}
    missing = [line["not_built"] for line in first if "not_built" in line]
    decisions = [line["decision"] for line in first if "decision" in line]
    kinds = {}
    for kind in ("probe", "micro", "mode"):
        kinds[kind] = list(zip(*([line for line in lines if kind in line] for lines in lines_of_ranks)))
    return paths, packings, missing, decisions, kinds


def milliseconds(lines):
    """From when the last rank began to when the last one ended."""
    return (max(line["end_us"] for line in lines) - max(line["begin_us"] for line in lines)) / 1e3


def fit(points):
    """(a, b, r2) of y = a + b x by least squares."""
    xs, ys = zip(*points)
    x, y = mean(xs), mean(ys)
    b = sum((u - x) * (v - y) for u, v in points) / sum((u - x) ** 2 for u in xs)
    a = y - b * x
    left = sum((v - a - b * u) ** 2 for u, v in points)
    return a, b, 1 - left / sum((v - y) ** 2 for v in ys)


def fit_links(probes):
    """{what: (alpha_ms, ms on the links over ms by bytes / bandwidth, r2)}; medians of rounds by size."""
    found = {}
    for what in ("all_to_all", "sum"):
        by_size = {}
        for lines in probes:
            if lines[0]["probe"] == what:
                by_size.setdefault(lines[0]["wire_ms"], []).append(milliseconds(lines))
        found[what] = fit([(wire, median(took)) for wire, took in by_size.items()])
    return found


def check_links(fits):
    for what, (_, _, r2) in fits.items():
        if not r2 > LEAST_R2:
            raise Refused(f"the alpha-beta fit of {what} has r2 {r2:.4f}, must be above {LEAST_R2}")


def micro_overhead(micro, layers):
    """What micro-ops take beyond whole tensors, of a step's all-to-alls (4 a layer) and sums, as LI-14 counts; None where
    they were not measured."""
    took = {name: median(milliseconds(lines) for lines in micro if lines[0]["micro"] == name)
            for name in {lines[0]["micro"] for lines in micro}}
    if "sums_cut" not in took or "sums_whole" not in took:
        return None
    whole = 4 * layers * took["all_to_all_whole"] + took["sums_whole"]
    cut = 4 * layers * took["all_to_all_cut"] + took["sums_cut"]
    return cut / whole - 1


def steps_by_mode(modes, paths, layers):
    """{mode: [a step: milliseconds of its parts]}"""
    found = {}
    for lines in modes:
        path = paths[lines[0]["mode"]]
        step = milliseconds(lines)
        moe = mean(sum(line["moe_us"]) for line in lines) / 1e3
        begin = max(line["begin_us"] for line in lines)
        found.setdefault(lines[0]["mode"], []).append({
            "step": step,
            "exposed": step - lines[0]["compute_us"] / 1e3,
            # Beyond what a layer's backward takes on the wire: latency, sharing, and waiting for other ranks.
            "a2a": moe - layers * (path["moe_backward_ms"] - 2 * path["all_to_all_ms"]),
            "moe_backward": moe,
            "moe_forward": mean(line["forward_end_us"] - begin for line in lines) / 1e3 - layers * path["attention_ms"],
            "forward_exchange": mean(line["forward_exchange_us"] for line in lines) / 1e3,
            "tail": mean(line["end_us"] - line["backward_end_us"] for line in lines) / 1e3})
    return found


def medians(steps):
    """{mode: {part: median}}"""
    return {mode: {key: median(step[key] for step in all_steps) for key in all_steps[0]} for mode, all_steps in steps.items()}


def slowdowns(modes, mode, alone="ar_last"):
    """Of backward's all-to-alls that were under a sum: time over the same one's by itself (in a mode that sums last)."""
    by_itself = {}
    for lines in modes:
        if lines[0]["mode"] == alone:
            for rank, line in enumerate(lines):
                for i, took in enumerate(line["all_to_all_us"]):
                    by_itself.setdefault((rank, i), []).append(took)
    base = {key: median(values) for key, values in by_itself.items()}
    found = []
    for lines in modes:
        if lines[0]["mode"] != mode:
            continue
        for rank, line in enumerate(lines):
            for i, (took, under) in enumerate(zip(line["all_to_all_us"], line["under_sums_us"])):
                if under >= UNDER * base[rank, i]:
                    found.append(took / base[rank, i])
    return found


def print_modes(found, paths, order):
    best = min(found[mode]["step"] for mode in found)
    rows = [["mode", "step ms", "over best", "exposed ms", "by its model", "over it", "backward a2a ms", "bytes / bandwidth",
             "over it", "sums after backward"]]
    for mode in order:
        if mode not in found:
            rows.append([mode, "not built"] + [""] * 8)
            continue
        part, path = found[mode], paths[mode]
        model, wire = path["step_ms"] - path["compute_ms"], 2 * path["all_to_all_ms"] * path["layers"]
        rows.append([mode, f"{part['step']:.0f}", f"{part['step'] / best:.3f}", f"{part['exposed']:.0f}", f"{model:.0f}",
                     f"{part['exposed'] / model:.3f}", f"{part['a2a']:.0f}", f"{wire:.0f}",
                     f"{part['a2a'] / wire:.3f}" if wire else None, f"{part['tail']:.0f}"])
    report.table(rows)


def figures_of(found, paths, overhead):
    """Of one model and number of workers; without those for which a mode is missing."""
    made = {} if overhead is None else {"microop_overhead": overhead}
    if "full" not in found:
        return made
    full, path = found["full"], paths["full"]
    made["exposed_over_bound"] = full["exposed"] / (path["step_ms"] - path["compute_ms"])
    if path["all_to_all_ms"] > 0:
        made["a2a_over_wire"] = full["a2a"] / (2 * path["all_to_all_ms"] * path["layers"])
    made["best_over_full"] = min(part["step"] for mode, part in found.items() if mode != "full") / full["step"]
    made["fair_over_full"] = found["fair"]["step"] / full["step"]
    return made


def ratios_of(found):
    """Beside the paper's rows (scheduler/PAPERS.md)."""
    fair = found["fair"]
    over = lambda mode, part: fair[part] / found[mode][part] if mode in found and found[mode][part] > 0 else None
    return {"LI-7": over("full", "step"), "LI-8 forward": over("full", "moe_forward"),
            "LI-8 backward": over("full", "moe_backward"), "LI-9": over("full", "a2a"), "LI-12": over("priority", "step"),
            "LI-13": over("partition", "step"), "pipelining": over("pipelining", "step"), "fixed": over("fixed", "step")}


WORST = {"exposed_over_bound": max, "a2a_over_wire": max, "microop_overhead": max, "best_over_full": min}


def conclude(figures):
    """figures: {(model, workers): of figures_of}.  The worst of all, and fair_over_full's means over models; of what is called a
    bound also the least: below 1 it is beaten, so it is a model, which resolves no less than that."""
    keys = ("exposed_over_bound", "a2a_over_wire", "microop_overhead", "best_over_full")
    made = {}
    for key in keys:
        values = [found[key] for found in figures.values() if key in found]
        made[key] = WORST[key](values) if values else None
        if key in ("exposed_over_bound", "a2a_over_wire"):
            made[f"{key}_least"] = min(values) if values else None
    for workers in (4, 16):
        values = [found["fair_over_full"] for (_, count), found in figures.items() if count == workers and "fair_over_full" in found]
        made[f"fair_over_full_{workers}"] = mean(values) if values else None
    return made
