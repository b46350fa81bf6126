"""What every benchmark prints: who measured what where, and one line of JSON last."""
import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def log(text):
    print(text, file=sys.stderr, flush=True)


def parser(description):
    """With what every benchmark takes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers end, too
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast it is")
    made.add_argument("--bin", default=str(ROOT / "build/release/bin"), help="folder of the built programs")
    return made


def arguments(description):
    made = parser(description)
    made.add_argument("--cache", default=str(ROOT / "build/bench"), help="folder for the checkpoint, kept")
    return made.parse_args()


def require(*packages):
    """Ends the program with a message unless the Python packages are there."""
    missing = []
    for package in packages:
        try:
            __import__(package)
        except ImportError:
            missing.append(package)
    if missing:
        sys.exit(f"{Path(sys.argv[0]).name}: {platform.python_implementation()} at {sys.executable} has no "
                 f"{', '.join(missing)}; install with pip, or name another Python by the environment variable PYTHON")


def machine():
    """SY_COMMIT: of programs that were built elsewhere."""
    try:
        commit = os.environ.get("SY_COMMIT") or subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout
    except FileNotFoundError:  # a machine that has only a pack
        commit = ""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {"commit": commit.strip() or "unknown", "processor": f"{model}, {os.cpu_count()} cores"}


def load_average():
    return round(os.getloadavg()[0], 2)


def table(rows):
    """Prints rows of cells, the first row as heading, columns aligned; None is "-"."""
    cells = [[cell if isinstance(cell, str) else "-" if cell is None else f"{cell:.2f}" for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip())


def finish(name, figures, details):
    """The last line.  figures: the keys that are compared between runs."""
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}
    print(json.dumps({"benchmark": name, **rounded, **details, **machine()}, allow_nan=False), flush=True)
