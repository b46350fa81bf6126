"""Settings that PyTorch's libraries read when they are loaded: import this module before torch."""

import os

# Idle OpenMP threads must sleep, not spin: on a machine with other work spinning cost a factor of two and more.  SY_OMP_WAIT=spin
# leaves it to the library.
if os.environ.get("SY_OMP_WAIT") != "spin":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# oneDNN keeps generated code by shape, and the experts' row counts make many shapes.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
