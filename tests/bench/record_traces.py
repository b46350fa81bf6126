"""Routing traces of the demo model on this repository's own files, for who has no traces: two files, disjoint documents.

Sources are distinguished by kind, which is kept as each sequence's label; kinds take turns, piece by piece.
"""
import json
import re
import subprocess
from pathlib import Path

import report
from switchyard_engine import Switchyard

KINDS = {"cpp": ("*.cc", "*.h"), "prose": ("*.md",), "python": ("*.py",), "build": ("CMakeLists.txt", "*.cmake", "*.sh", "*.yml")}
PIECE_CHARS = 1600  # about 512 tokens
WINDOW = 512
PIECES = {"fit": 60, "held": 50}  # of each kind, at most


def pieces(kind, which, most=None):
    """Texts of one kind, so many at most: every other file is held out."""
    listed = subprocess.run(["git", "-C", str(report.ROOT), "ls-files", "-z", *KINDS[kind]], capture_output=True, text=True, check=True)
    files = sorted(path for path in listed.stdout.split("\0") if path)
    found = []
    for path in files[0 if which == "fit" else 1::2]:
        text = re.sub(r"[^\n\x20-\x7e]", "", (report.ROOT / path).read_text(errors="ignore"))
        found += [text[at:at + PIECE_CHARS] for at in range(0, min(len(text), 3 * PIECE_CHARS) - PIECE_CHARS // 2, PIECE_CHARS)]
    return found[:most or PIECES[which]]


def traces(bin_dir, folder):
    """(fit, held): made where they are not there yet."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {which: folder / f"demo_{which}.trace" for which in PIECES}
    if not all(path.exists() for path in wanted.values()):
        report.log("recording traces of the demo model on this repository's files")
        with Switchyard(bin_dir, report.ROOT / "deploy/demo-model", folder / "trace_server.log") as server:
            for which, path in wanted.items():
                texts = {kind: pieces(kind, which) for kind in KINDS}
                lines = [json.dumps({"text": texts[kind][i], "label": kind})
                         for i in range(PIECES[which]) for kind in KINDS if i < len(texts[kind])]
                draft = path.with_suffix(".draft")
                server.record("\n".join(lines) + "\n", draft, WINDOW)
                draft.rename(path)
    return wanted["fit"], wanted["held"]
