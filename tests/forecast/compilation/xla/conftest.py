"""Traces and compiles: only where PyTorch/XLA and the TPU's compiler are installed, see `make test-xla`."""

import importlib.util
import os

IS_HERE = os.environ.get("PJRT_DEVICE") == "CPU" and importlib.util.find_spec("libtpu") is not None
collect_ignore_glob = [] if IS_HERE else ["test_*.py"]
