#!/usr/bin/env python3
"""The boards of deploy/grafana and the alerts name metrics and labels that exist, and the boards' panels are sound.

Metrics are those of the tables in tests/e2e/metrics_test.cc and training_metrics_test.cc, which tests compare with the
pages of real servers, and of OTHERS.  usage: boards_test.py ROOT
"""

import json
import pathlib
import re
import subprocess
import sys

ROW = re.compile(r'\{"((?:switchyard|process)_[a-z0-9_]+)",\s*\{"(gauge|counter|histogram)", (kOurs|"[a-z_,]*")')
OURS = {"engine", "model_name"}
SCRAPED = {"job", "instance"}
# Families that show only where they apply: name, labels, source, which has to name it.
OTHERS = {
    "switchyard_certificate_expiry_seconds": ("gauge", OURS, "server/metrics/metrics.cc"),
    "switchyard_train_evaluation_loss": ("gauge", {"slot"}, "server/metrics/training_metrics.cc"),
    "switchyard_train_evaluation_set_loss": ("gauge", {"slot", "set"}, "server/metrics/training_metrics.cc"),
    "switchyard_worker_estimate_accuracy_ratio": ("gauge", {"estimator", "ahead", "phase"}, "workers/process/metrics.cc"),
    "up": ("gauge", set(), None),
}
UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "reqps", "ops", "sci"}
faults = []


def fault(*words):
    faults.append(" ".join(map(str, words)))


def families(root):
    known = {}
    for file in ("metrics_test.cc", "training_metrics_test.cc"):
        for name, kind, labels in ROW.findall((root / "tests/e2e" / file).read_text(encoding="utf-8")):
            known[name] = (kind, OURS if labels == "kOurs" else set(filter(None, labels.strip('"').split(","))))
    for name, (kind, labels, source) in OTHERS.items():
        known[name] = (kind, labels)
        if source and f'"{name}"' not in (root / source).read_text(encoding="utf-8"):
            fault(source, "does not name", name)
    return known


def check_expression(where, text, known):
    """Returns the names of the families in an expression."""
    bare = re.sub(r'"[^"]*"', '""', text)
    used = set()
    labels = set()
    for name in re.findall(r"\b(?:switchyard_\w+|process_\w+|up)\b(?!=)", bare):
        family, part = name, ""
        if name not in known and (split := re.fullmatch(r"(\w+)_(bucket|sum|count)", name)):
            family, part = split.groups()
        if family not in known:
            fault(where, "no metric is called", name)
            continue
        if (known[family][0] == "histogram") != bool(part):
            fault(where, name, "is a", known[family][0])
        used.add(family)
        labels |= known[family][1] | ({"le"} if part == "bucket" else set())
    named = {label for inside in re.findall(r"\{([^}]*)\}", bare) for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)}
    named |= {label.strip() for inside in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", bare) for label in inside.split(",") if label.strip()}
    if unknown := named - labels - SCRAPED:
        fault(where, "no metric of it has the label", *unknown)
    if not used:
        fault(where, "names no metric")
    for rate in re.findall(r"\b(?:rate|increase|irate)\(([a-z_]+)", bare):
        family = re.sub(r"_(bucket|sum|count)$", "", rate) if rate not in known else rate
        if family in known and known[family][0] == "gauge":
            fault(where, "a rate of the gauge", rate)
    return used


def check_board(path, known):
    board = json.loads(path.read_text(encoding="utf-8"))
    variables = [variable["name"] for variable in board["templating"]["list"]]
    if board["schemaVersion"] != 39 or variables[0] != "datasource":
        fault(path.name, "schemaVersion is not 39, or the first variable is not datasource")
    for variable in board["templating"]["list"][1:]:
        check_expression(f"{path.name}: variable {variable['name']}:", re.sub(r"^label_values\((.*), \w+\)$", r"\1", variable["query"]), known)
    taken, ids, titles = {}, set(), set()
    row = ""
    for panel in board["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        where = f"{path.name}: {panel['title']}:"
        if panel["id"] in ids or (row, panel["title"]) in titles:
            fault(where, "its id or title is another panel's, too")
        ids.add(panel["id"])
        titles.add((row, panel["title"]))
        at = panel["gridPos"]
        if at["x"] < 0 or at["x"] + at["w"] > 24 or at["w"] < 1 or at["h"] < 1:
            fault(where, "is not within the 24 columns")
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            if (other := taken.setdefault(cell, panel)) is not panel:
                fault(where, "lies over", other["title"])
                break
        if panel["type"] == "row":
            continue
        if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            fault(where, "its unit is", panel["fieldConfig"]["defaults"].get("unit"))
        if panel["datasource"]["uid"] != "${datasource}" or not panel["targets"]:
            fault(where, "its datasource, or no target")
        used = set()
        for target in panel["targets"]:
            used |= check_expression(where, target["expr"], known)
            for name in re.findall(r"\$\{?(\w+)", target["expr"]):
                if name not in variables + ["__rate_interval"]:
                    fault(where, "there is no variable", name)
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                if label not in target["expr"] and not any(label in known[name][1] | SCRAPED for name in used):
                    fault(where, "the legend's label", label)
        listed = set(re.findall(r"`(\w+)`", panel["description"].rpartition("Metric: ")[2]))
        if "\n\nMetric: " not in panel["description"] or listed != used:
            fault(where, "its description lists", listed, "and not", used)
    return len(ids)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    known = families(root)
    paths = sorted((root / "deploy/grafana").glob("*.json"))
    if len(paths) != 3 or len(known) < 150:
        fault(len(paths), "boards,", len(known), "metrics: were they read?")
    panels = sum(check_board(path, known) for path in paths)
    alerts = (root / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8")
    rules = re.findall(r"- alert: (\w+)\n +expr: (?:>-\n)?(.*?)\n +(?:for|labels):", alerts, re.S)
    if len(rules) != alerts.count("- alert:"):
        fault("alerts.yaml:", len(rules), "rules were read of", alerts.count("- alert:"))
    for name, expression in rules:
        check_expression(f"alerts.yaml: {name}:", expression, known)
    written = subprocess.run([sys.executable, root / "deploy/grafana/boards.py", "--check"], capture_output=True, text=True, check=False)
    if written.returncode != 0:
        fault(written.stderr.strip())
    for line in faults:
        print(line)
    print(f"{len(paths)} boards with {panels} panels and rows, {len(rules)} alerts, {len(known)} metrics: {len(faults)} faults")
    sys.exit(1 if faults else 0)


main()
