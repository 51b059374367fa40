"""Tests run side by side: one thread each, or they wait for each other's."""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # before torch is imported, and for the processes that tests start
