"""Benchmarks in parts: each part's text and figures are kept in a folder, so that parts may be run one by one and put into
one table; one that failed, or had too little idle CPU, is run once more if there is time.

A part gives {"figures": of targets, "idle": share of the CPU (not where nothing is timed)}.
"""
import contextlib
import io
import json
import sys
import time
from pathlib import Path

import report

LEAST_IDLE = 0.2  # of the CPU; else a part measures this machine's cores


class _Kept(io.StringIO):
    """What is printed, kept as well."""

    def write(self, text):
        sys.__stdout__.write(text)
        sys.__stdout__.flush()
        return super().write(text)


def add_arguments(parser, names, folder, default=None):
    """default: of the names, what runs when none is given; without: all."""
    parser.add_argument("--only", nargs="+", choices=names, default=default or names, help="parts of the table")
    parser.add_argument("--results", default=str(report.ROOT / "build/bench" / folder), help="folder of what parts gave, kept")
    parser.add_argument("--merge", action="store_true", help="runs nothing: one table of what --results has of the parts")


def counts(result):
    return "error" not in result and result.get("idle", 1) >= LEAST_IDLE


def _run_and_keep(options, name, run_part, settings):
    begin, load, kept = time.monotonic(), report.load_average(), _Kept()
    try:
        with contextlib.redirect_stdout(kept):
            result = run_part(options, name)
    except (RuntimeError, OSError) as error:
        result = {"figures": {}, "error": str(error)}
        report.log(f"{name}: {error}")
    result = {"part": name, **report.machine(), **settings, "load_average": [load, report.load_average()], **result,
              "seconds": round(time.monotonic() - begin), "text": kept.getvalue()}
    folder = Path(options.results)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result))
    return result


def run(options, run_part, settings, minutes):
    """Results by part.  settings: kept with each.  Nothing is run again that would end later than after so many minutes."""
    begin, results = time.monotonic(), {}
    passed = lambda: (time.monotonic() - begin) / 60
    for name in options.only:
        results[name] = _run_and_keep(options, name, run_part, settings)
        report.log(f"{name} took {results[name]['seconds']:.0f} s; {len(results)} of {len(options.only)} parts in {passed():.1f} min")
    for name in [name for name in options.only if not counts(results[name])]:
        if passed() + results[name]["seconds"] / 60 > minutes:
            report.log(f"{name} does not count; no time to run it again")
            continue
        report.log(f"{name} does not count; once more")
        again = _run_and_keep(options, name, run_part, settings)
        if counts(again) or "error" in results[name]:
            results[name] = again
    return results


def difference(result, other, keys):
    """Which of the settings `keys` that both have is not the same in both, in words; "" if none."""
    for key in keys:
        values = result.get(key), other.get(key)
        if None not in values and values[0] != values[1]:
            return f"{key} is {values[0]}, not {values[1]}"
    return ""


def kept(options, *same):
    """Results by part, of earlier runs, and what they printed.  same: settings that all must share; what differs from a part
    before it does not count."""
    results = {}
    for name in options.only:
        path = Path(options.results) / f"{name}.json"
        if not path.exists():
            report.log(f"{name}: not in {options.results}")
            continue
        results[name] = json.loads(path.read_text())
        print(results[name]["text"], end="")
    for i, (name, result) in enumerate(results.items()):
        for before in list(results)[:i]:
            other = difference(result, results[before], same)
            if other and counts(result) and counts(results[before]):
                result["error"] = f"{other} as in {before}"
    return results


def print_not_counting(results):
    for name, result in results.items():
        if not counts(result):
            print(f"{name} does not count: {result.get('error', 'too little of the CPU was idle')}")


def details(results, *settings):
    """Of each part, for the line of JSON."""
    keys = ("commit", *settings, "idle", "load_average", "seconds")
    return {name: {key: result[key] for key in keys if key in result} for name, result in results.items()}
