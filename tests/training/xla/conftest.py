"""Runs on PyTorch/XLA's CPU client, only where it is requested and installed; see `make test-xla`."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_runs import FORKS

IS_HERE = os.environ.get("PJRT_DEVICE") == "CPU" and importlib.util.find_spec("torch_xla") is not None
collect_ignore_glob = [] if IS_HERE else ["*.py"]

if IS_HERE:
    # Programs run for milliseconds and would compile for many seconds.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ.setdefault("XLA_FLAGS", flags)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before torch_xla is loaded, which is once for all runs
    FORKS.set_forkserver_preload(["relm.training.loop", "relm.examples.masked", "relm.examples.seq2seq", "torch_xla"])

    from xla_runs import XlaRun

    @pytest.fixture(scope="session")
    def runs(tmp_path_factory: pytest.TempPathFactory, examples_of: Callable[[str], Path]) -> Callable[..., XlaRun]:
        """Return the run of a name and an objective; each name has its own folder."""
        folder = tmp_path_factory.mktemp("runs")

        def made(name: str, objective: str, **settings) -> XlaRun:
            return XlaRun(folder / name / objective, examples_of(objective), objective=objective, **settings)

        return made
