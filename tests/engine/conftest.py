"""Settings of the process that must stand before torch is imported."""

import os

# OpenMP threads that spin while they wait slow each other down where cores are shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "2")
