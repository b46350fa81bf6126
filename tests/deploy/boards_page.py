"""Draws the panels of a board, in its layout, from the answers of Prometheus: one page of HTML and SVG for each board.

It is no Grafana: it shows whether each panel has the data, the unit and the legend that its reader needs.
"""

import html
import math
import re

COLUMN, LINE, GAP = 56, 36, 8  # pixels: of the 24 columns, of a unit of height, between panels
COLORS = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#c0d8ff", "#56a64b", "#e0b400", "#3274d9", "#fa6400"]
ANCHORS = ["middle"] * 4 + ["end"]  # of the five labels of time
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#ccccdc"}
STYLE = """body{background:#111217;color:#ccccdc;font:13px 'DejaVu Sans',sans-serif;margin:12px}
.panel{position:absolute;background:#181b1f;border:1px solid #24262c;border-radius:3px;box-sizing:border-box;overflow:hidden}
.title{position:absolute;left:8px;top:5px;white-space:nowrap;font-size:12px}.row{font-weight:bold;padding:8px 2px;position:absolute}
.legend{position:absolute;left:8px;right:8px;bottom:3px;height:30px;overflow:hidden;font-size:10px;line-height:14px}
.legend b{font-weight:normal;margin-right:9px;white-space:nowrap}.value{position:absolute;width:100%;text-align:center;top:36px;font-size:24px;white-space:nowrap}
text{fill:#8e8e99;font-size:10px}h1{font-size:18px;font-weight:normal;margin:2px 0 10px}"""


def form(value, unit):
    """A value as Grafana writes it."""
    if value is None:
        return "none"
    if unit == "s":
        for factor, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return "0 s"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "Bps"):
        step = min(4, int(math.log(max(abs(value), 1), 1024)))
        return f"{value / 1024 ** step:.3g} {['', 'K', 'M', 'G', 'T'][step]}{'i' if step else ''}B" + ("/s" if unit == "Bps" else "")
    if unit == "sci":
        return f"{value:.3g}"
    suffix = {"reqps": " req/s", "ops": " ops/s"}.get(unit, "")
    for factor, name in ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K")):
        if abs(value) >= factor and unit != "none":
            return f"{value / factor:.3g}{name}{suffix}"
    return f"{value:.3g}{suffix}"


def named(target, labels):
    """The series' name by the target's legend."""
    if target["legendFormat"] == "__auto":
        return ", ".join(f"{k}={v}" for k, v in labels.items() if k != "__name__") or "value"
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match.group(1), ""), target["legendFormat"])


def polyline(points, color, fill=False, width=1.4):
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    if fill:
        return f'<polygon points="{line}" fill="{color}" fill-opacity="0.35" stroke="{color}" stroke-width="0.8"/>'
    return f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def runs(points):
    """The points in pieces, without a line over a time that has none."""
    pieces = []
    for point in points:
        if pieces and point[0] - pieces[-1][-1][0] <= 3:
            pieces[-1].append(point)
        else:
            pieces.append([point])
    return pieces


def stat(panel, series, size, start, end):
    width, height = size
    points = series[0][1] if series else []
    last = points[-1][1] if points else None
    unit, color = panel["fieldConfig"]["defaults"]["unit"], NAMED["blue"]
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if last is not None and (step["value"] is None or last >= step["value"]):
            color = NAMED[step["color"]]
    out = f'<div class="value" style="color:{color}">{form(last, unit)}</div>'
    if points:
        most = max(value for _, value in points) or 1
        place = lambda at, value: (width * (at - start) / (end - start), height - 3 - 30 * max(value, 0) / most)
        lines = "".join(polyline([place(*point) for point in piece], color, width=1) for piece in runs(points))
        out += f'<svg width="{width}" height="{height}">{lines}</svg>'
    return out


def ticks(least, most):
    step = 10 ** math.floor(math.log10((most - least) / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if (most - least) / (step * factor) <= 4)
    first = math.ceil(least / step - 1e-9)
    return [step * i for i in range(first, math.floor(most / step + 1e-9) + 1)]


def graph(panel, series, size, start, end):
    """series: (name, points) each."""
    width, height = size
    left, top, bottom = 62, 28, height - 50
    stack = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    limits, unit = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["defaults"]["unit"]
    drawn, below = [], {}
    for name, points in series:
        lower = [(at, below.get(at, 0.0)) for at, _ in points]
        upper = [(at, value + (below.get(at, 0.0) if stack else 0)) for at, value in points]
        below.update(upper)
        drawn.append((name, upper, lower, points))
    values = [value for _, upper, _, _ in drawn for _, value in upper] or [0, 1]
    least = min(limits.get("min", min(values)), min(values))
    most = limits.get("max", max(values))
    if most <= least:
        most = least + (abs(least) or 1)
    x = lambda at: left + (width - left - 10) * (at - start) / (end - start)
    y = lambda value: bottom - (bottom - top) * (min(value, most) - least) / (most - least)
    out = f'<svg width="{width}" height="{height}">'
    for tick in ticks(least, most):
        out += f'<line x1="{left}" x2="{width - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#2c2e35"/>'
        out += f'<text x="{left - 5}" y="{y(tick) + 3:.1f}" text-anchor="end">{form(tick, unit)}</text>'
    for part in range(5):
        at = start + (end - start) * part / 4
        out += f'<text x="{x(at):.1f}" y="{bottom + 13}" text-anchor="{ANCHORS[part]}">{at - start:.0f} s</text>'
    for i, (_, upper, lower, _) in enumerate(drawn):
        color, under = COLORS[i % len(COLORS)], dict(lower)
        for piece in runs(upper):
            line = [(x(at), y(value)) for at, value in piece]
            back = [(x(at), y(under[at])) for at, _ in reversed(piece)]
            out += polyline(line + back, color, fill=True) if stack else polyline(line, color)
    legend = "".join(f'<b><span style="color:{COLORS[i % len(COLORS)]}">▬</span> {html.escape(name)} {form(points[-1][1], unit)}</b>'
                     for i, (name, _, _, points) in enumerate(drawn))
    return out + f'</svg><div class="legend">{legend}</div>'


def heat(panel, series, size, start, end):
    """Cells by time and bucket; series are cumulative, by le."""
    width, height = size
    left, top, bottom = 62, 28, height - 24
    rows = sorted(((math.inf if labels["le"] == "+Inf" else float(labels["le"]), dict(points)) for labels, points in series), key=lambda row: row[0])
    columns = 45
    cells = []
    for i, (_, points) in enumerate(rows):
        before = rows[i - 1][1] if i else {}
        sums = [0.0] * columns
        for at, value in points.items():
            sums[min(columns - 1, int(columns * (at - start) / (end - start)))] += max(0.0, value - before.get(at, 0.0))
        cells.append(sums)
    used = [i for i, sums in enumerate(cells) if max(sums, default=0) > 0]
    shown = range(min(used), max(used) + 1) if used else range(0)
    most = max((value for sums in cells for value in sums), default=0) or 1
    out = f'<svg width="{width}" height="{height}">'
    tall, wide = (bottom - top) / max(len(shown), 1), (width - left - 10) / columns
    for place, i in enumerate(shown):
        y = bottom - tall * (place + 1)
        out += f'<text x="{left - 5}" y="{y + tall / 2 + 3:.1f}" text-anchor="end">{"more" if rows[i][0] == math.inf else form(rows[i][0], panel["fieldConfig"]["defaults"]["unit"])}</text>'
        for column, value in enumerate(cells[i]):
            if value > 0:
                out += (f'<rect x="{left + wide * column:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{tall - 1:.1f}" '
                        f'fill="#5794f2" fill-opacity="{0.12 + 0.88 * math.sqrt(value / most):.2f}"/>')
    for part in range(5):
        out += f'<text x="{left + (width - left - 10) * part / 4:.1f}" y="{bottom + 14}" text-anchor="{ANCHORS[part]}">{(end - start) * part / 4:.0f} s</text>'
    return out + "</svg>"


def draw(panel, answers, start, end):
    at = panel["gridPos"]
    size = at["w"] * COLUMN - GAP, at["h"] * LINE - GAP
    place = f'left:{at["x"] * COLUMN}px;top:{at["y"] * LINE}px;'
    if panel["type"] == "row":
        return f'<div class="row" style="{place}">▾ {html.escape(panel["title"])}</div>'
    if panel["type"] == "stat":
        inside = stat(panel, answers.get(0, []), size, start, end)
    elif panel["type"] == "heatmap":
        inside = heat(panel, answers.get(0, []), size, start, end)
    else:
        lines = [(named(panel["targets"][i], labels), points) for i, series in sorted(answers.items()) for labels, points in series]
        inside = graph(panel, lines, size, start, end)
    return (f'<div class="panel" style="{place}width:{size[0]}px;height:{size[1]}px" title="{html.escape(panel["description"])}">'
            f'{inside}<div class="title">{html.escape(panel["title"])}</div></div>')


def write(folder, boards, answers, start, end):
    """Writes FOLDER/NAME.html for each board.  boards: by name, as JSON has them; answers: by name, id of the panel and
    index of the target, the series: (labels, points) each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, board in boards.items():
        panels = "".join(draw(panel, answers[name].get(panel["id"], {}), start, end) for panel in board["panels"])
        height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) * LINE
        (folder / f"{name}.html").write_text(
            f'<!doctype html><meta charset="utf-8"><title>{board["title"]}</title><style>{STYLE}</style><h1>{board["title"]}</h1>'
            f'<div style="position:relative;height:{height}px;width:{24 * COLUMN}px">{panels}</div>\n', encoding="utf-8")
