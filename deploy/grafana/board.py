"""A board of Grafana as code: rows of panels, placed from left to right.  boards.py has ours.

In expressions @S stands for the label matchers of servers, @T for those of metrics without a model's name (training),
@W for those of workers, and @R for [$__rate_interval].
"""

import json
import re

MATCHERS = {
    "@S": 'job=~"$job", model_name=~"$model_name", instance=~"$instance"',
    "@T": 'job=~"$job", instance=~"$instance"',
    "@W": 'job=~"$job", instance=~"$worker"',
    "@R": "[$__rate_interval]",
}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
METRIC = re.compile(r"\b(?:switchyard_[a-z0-9_]+|process_start_time_seconds|up)\b(?=\{)")
FAULTS = 'code=~"UNKNOWN|DEADLINE_EXCEEDED|INTERNAL|UNAVAILABLE|DATA_LOSS"'


def expand(text):
    for short, full in MATCHERS.items():
        text = text.replace(short, full)
    return text


def quantile(q, metric, who="@S", by=""):
    return f"histogram_quantile({q}, sum by (le{by}) (rate({metric}_bucket{{{who}}}@R)))"


def mean(metric, who="@S", by=""):
    by = f" by ({by})" if by else ""
    return f"sum{by} (rate({metric}_sum{{{who}}}@R)) / sum{by} (rate({metric}_count{{{who}}}@R))"


def quantiles(metric, *which):
    return [(quantile(q, metric), f"p{100 * q:g}") for q in which or (0.5, 0.95, 0.99)]


class Board:
    def __init__(self, uid, title, text, variables):
        self.head = {"uid": uid, "title": title, "description": text}
        self.variables, self.panels, self.x, self.y, self.height = variables, [], 0, 0, 0

    def place(self, w, h):
        if self.x + w > 24:
            self.x, self.y, self.height = 0, self.y + self.height, 0
        where = {"h": h, "w": w, "x": self.x, "y": self.y}
        self.x, self.height = self.x + w, max(self.height, h)
        return where

    def row(self, title):
        self.x, self.y, self.height = 0, self.y + self.height, 0
        self.panels.append({"id": len(self.panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                            "gridPos": self.place(24, 1)})

    def add(self, kind, title, unit, queries, text, w, h, defaults, options):
        queries = [(queries, "__auto")] if isinstance(queries, str) else queries
        targets = [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expand(query), "legendFormat": legend,
                    "format": "heatmap" if kind == "heatmap" else "time_series"} for i, (query, legend) in enumerate(queries)]
        names = sorted({re.sub(r"_(bucket|sum|count)$", "", name) for query, _ in queries for name in METRIC.findall(query)})
        self.panels.append({
            "id": len(self.panels) + 1, "type": kind, "title": title,
            "description": text + "\n\nMetric: " + ", ".join(f"`{name}`" for name in names), "datasource": SOURCE,
            "gridPos": self.place(w, h), "targets": targets,
            "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": []}, "options": options})

    def stat(self, title, unit, query, text, steps=(), w=3):
        """A number of the present.  steps: (color, from which value), the first of them from the beginning."""
        colors = [{"color": color, "value": value} for color, value in steps or [("blue", None)]]
        idle = [{"type": "special", "options": {"match": "nan", "result": {"index": 0, "text": "idle"}}}]
        self.add("stat", title, unit, query, text, w, 4,
                 {"color": {"mode": "thresholds"}, "mappings": idle, "noValue": "none", "thresholds": {"mode": "absolute", "steps": colors}},
                 {"colorMode": "value" if steps else "none", "graphMode": "area", "justifyMode": "auto", "orientation": "auto",
                  "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "value"})

    def graph(self, title, unit, queries, text, w=8, stack=False, least=0, most=None):
        """Lines over time.  least, most: of the axis; None: what the values ask for."""
        custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stack else 8, "showPoints": "never", "spanNulls": False,
                  "stacking": {"mode": "normal" if stack else "none", "group": "A"}}
        limits = {name: value for name, value in (("min", least), ("max", most)) if value is not None}
        defaults = {"custom": custom, "color": {"mode": "palette-classic"}, **limits}
        self.add("timeseries", title, unit, queries, text, w, 7, defaults,
                 {"legend": {"calcs": ["mean", "lastNotNull"], "displayMode": "list", "placement": "bottom", "showLegend": True},
                  "tooltip": {"mode": "multi", "sort": "desc"}})

    def heat(self, title, unit, metric, text, w=8, more=""):
        query = f"sum by (le) (increase({metric}_bucket{{@S{more}}}@R))"
        self.add("heatmap", title, unit, [(query, "{{le}}")], text, w, 7,
                 {"custom": {"scaleDistribution": {"type": "linear"}}},
                 {"calculate": False, "yAxis": {"unit": unit, "axisPlacement": "left"}, "rowsFrame": {"layout": "auto"},
                  "color": {"mode": "scheme", "scheme": "Blues", "steps": 32, "exponent": 0.5}, "cellGap": 1,
                  "tooltip": {"show": True, "yHistogram": False}, "legend": {"show": False}, "filterValues": {"le": 1e-9}})

    def json(self):
        head = {**self.head, "tags": ["switchyard"], "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1, "refresh": "30s",
                "time": {"from": "now-1h", "to": "now"}, "timezone": "", "annotations": {"list": []},
                "links": [{"type": "dashboards", "title": "Switchyard", "tags": ["switchyard"], "asDropdown": False, "includeVars": True,
                           "keepTime": True, "targetBlank": False, "icon": "external link"}]}
        lines = ",\n".join("  " + json.dumps(panel) for panel in self.panels)
        variables = ",\n".join("  " + json.dumps(variable) for variable in self.variables)
        return (json.dumps(head, indent=1)[:-2] + ',\n "templating": {"list": [\n' + variables + '\n ]},\n "panels": [\n' + lines + "\n ]\n}\n")


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query, "query": query, "refresh": 2, "sort": 1,
            "includeAll": True, "multi": True, "hide": 0, "regex": "", "options": [],
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}


DATASOURCE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "regex": "", "hide": 0,
              "includeAll": False, "multi": False, "options": [], "current": {}}
JOB = variable("job", "Job", "label_values(switchyard_ready, job)")
MODEL = variable("model_name", "Model", 'label_values(switchyard_ready{job=~"$job"}, model_name)')
INSTANCE = variable("instance", "Server", 'label_values(switchyard_ready{job=~"$job", model_name=~"$model_name"}, instance)')
WORKER = variable("worker", "Worker", 'label_values(switchyard_worker_rank{job=~"$job"}, instance)')
SERVING, TRAINING = [DATASOURCE, JOB, MODEL, INSTANCE, WORKER], [DATASOURCE, JOB, variable(
    "instance", "Server", 'label_values(switchyard_ready{job=~"$job"}, instance)'), WORKER]
