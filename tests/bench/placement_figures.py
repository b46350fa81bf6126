"""What the runs of placement.py say: of each mode and batch the slowest rank, medians, tails and their intervals."""
import random
import statistics

import report

ROUNDS = 300  # of the bootstrap
# What ideal took of its links and its compute by the rules under which two targets were missed, median and 95th percentile
# (placement.md, "By both rules").
OLD_IDEAL = (0.936, 0.969)


def slowest(lines_of_ranks):
    """runs[mode][batch] = {layer_ms, rows, phases_ms, batch_ms, copies, fine_tuned}, of the slowest rank each."""
    runs = {}
    for same in zip(*lines_of_ranks):
        first = same[0]
        runs.setdefault(first["mode"], {})[first["batch"]] = {
            # From when the last rank is at its gate until the last one has its rows.
            "layer_ms": (max(line["end_us"] for line in same) - max(line["gate_us"] for line in same)) / 1e3,
            "rows": (max(line["link_rows"] for line in same), max(line["own_rows"] for line in same)),
            "phases_ms": [statistics.mean(times) for times in zip(*(line["phases_ms"] for line in same))],
            "batch_ms": max(line["batch_ms"] for line in same),
            "copies": max(line["copies"] for line in same),
            "fine_tuned": first["fine_tuned"]}
    return runs


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def layers(run, batches):
    return [run[batch]["layer_ms"] for batch in batches]


def median_layer(run):
    return statistics.median(layers(run, run))


def interval(figure, batches, distinct):
    """95 % of what `figure` is on the trace's batches drawn again: one that was run several times is one sample."""
    source, samples = random.Random(1), {}
    for batch in batches:
        samples.setdefault(batch % distinct, []).append(batch)
    samples = list(samples.values())
    drawn = sorted(figure([batch for same in source.choices(samples, k=len(samples)) for batch in same]) for _ in range(ROUNDS))
    return drawn[int(0.025 * ROUNDS)], drawn[int(0.975 * ROUNDS)]


def targets(runs, batches, alone_ms):
    """The issue's figures; of layers, but static_over_agreed_batch.  alone_ms: what ideal's links and compute take by
    themselves; old_rule_*: the same with ideal at its share of that by the rules before."""
    median = {mode: statistics.median(layers(runs[mode], batches)) for mode in ("static", "agreed:2", "ideal")}
    tail = {mode: percentile(layers(runs[mode], batches), 0.95) for mode in ("agreed:1", "agreed:2", "ideal")}
    whole = {mode: statistics.median(runs[mode][batch]["batch_ms"] for batch in batches) for mode in ("static", "agreed:2")}
    old_median, old_tail = (share * alone_ms for share in OLD_IDEAL)
    return {"gap_closed": (median["static"] - median["agreed:2"]) / (median["static"] - median["ideal"]),
            "old_rule_gap_closed": (median["static"] - median["agreed:2"]) / (median["static"] - old_median),
            "old_rule_agreed_p95_over_ideal": tail["agreed:2"] / old_tail,
            "old_rule_agreed1_p95_over_ideal": tail["agreed:1"] / old_tail,
            "agreed_p95_over_ideal": tail["agreed:2"] / tail["ideal"],
            "agreed1_p95_over_ideal": tail["agreed:1"] / tail["ideal"],
            "static_over_agreed": median["static"] / median["agreed:2"],
            "static_over_agreed_batch": whole["static"] / whole["agreed:2"]}


def figures_of(runs, alone_ms):
    return targets(runs, sorted(runs["static"]), alone_ms)


def print_figures(found, runs, alone_ms, distinct):
    batches = sorted(runs["static"])
    for key, value in found.items():
        low, high = interval(lambda drawn, key=key: targets(runs, drawn, alone_ms)[key], batches, distinct)
        print(f"  {key} {value:.3f} ({low:.3f} to {high:.3f})", flush=True)


def keep_worst(worst, found):
    for key, value in found.items():
        if key in ("static_over_agreed", "static_over_agreed_batch"):
            continue
        better = max if key.endswith("over_ideal") else min
        worst[key] = better(worst.get(key, value), value)


def print_modes(runs, decide_us, row_ms, distinct):
    """Each mode beside `ideal` on the batches that both ran; `links`: what the fullest link and the busiest rank alone make of its
    rows, median over that of ideal."""
    def bound(run, batches):
        return [run[b]["rows"][0] * row_ms["link"] + run[b]["rows"][1] * row_ms["compute"] for b in batches]

    cells = [["mode", "batches", "layer ms", "interval", "95 %", "/ ideal", "95 % / ideal", "links", "95 %", "batch ms", "95 %", "/ ideal",
              "copies/layer", "fine-tuned", "gather", "dispatch", "compute", "combine", "decide us"]]
    for mode in sorted(runs, key=lambda mode: (mode == "ideal", mode != "static", mode)):
        run, batches = runs[mode], sorted(runs[mode])
        own, ideal = layers(run, batches), layers(runs["ideal"], batches)
        times, ideal_times = [run[b]["batch_ms"] for b in batches], [runs["ideal"][b]["batch_ms"] for b in batches]
        low, high = interval(lambda drawn, run=run: statistics.median(layers(run, drawn)), batches, distinct)
        cells.append([mode, str(len(batches)), statistics.median(own), f"{low:.1f}-{high:.1f}", percentile(own, 0.95),
                      statistics.median(own) / statistics.median(ideal), percentile(own, 0.95) / percentile(ideal, 0.95),
                      statistics.median(bound(run, batches)) / statistics.median(bound(runs["ideal"], batches)),
                      percentile(bound(run, batches), 0.95) / percentile(bound(runs["ideal"], batches), 0.95),
                      statistics.median(times), percentile(times, 0.95), statistics.median(times) / statistics.median(ideal_times),
                      sum(run[b]["copies"] for b in batches) / len(own), sum(run[b]["fine_tuned"] for b in batches) / len(own),
                      *(statistics.median(run[b]["phases_ms"][phase] for b in batches) for phase in range(4)), decide_us[mode]])
    report.table(cells)
