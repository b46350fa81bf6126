"""A memory control group for the processes that a benchmark starts (version 1 or 2 of the kernel's interface).  Needs root."""
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """Limits what its processes take, with the page cache that they fill.  A context manager; entered by `enter` in a process."""

    def __init__(self, limit):
        self._v2 = (ROOT / "cgroup.controllers").exists()
        self._folder = (ROOT if self._v2 else ROOT / "memory") / f"switchyard-bench-{os.getpid()}"
        self.limit = limit

    def __enter__(self):
        if self._v2:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        self._folder.mkdir()
        (self._folder / ("memory.max" if self._v2 else "memory.limit_in_bytes")).write_text(str(self.limit))
        swap = self._folder / ("memory.swap.max" if self._v2 else "memory.memsw.limit_in_bytes")
        if swap.exists():
            swap.write_text("0" if self._v2 else str(self.limit))
        return self

    def enter(self):
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def __exit__(self, *_):
        for _ in range(300):  # its processes are ending
            try:
                self._folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{self._folder} cannot be removed: processes are still in it")


def drop_page_cache():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
