"""The instances of an IPU run: equal host processes that PopRun starts, each with an equal part of the replicas."""

import os
import shlex
from collections.abc import Mapping

from relm.devices import ranks
from relm.devices.ranks import IPUS, LOCAL, OFFSET, TOTAL
from relm.errors import RelmError
from relm.recipes.devices import DEVICES
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.run import Run

OPTIONS = "RELM_POPRUN_OPTIONS"
"""Environment variable with the installation's options of PopRun, such as --host and --vipu-partition."""


def launcher(pipeline: Pipeline) -> list[str]:
    """Return the command prefix that starts all instances of a step by PopRun."""
    options = shlex.split(os.environ.get(OPTIONS, ""))
    return ranks.poprun(pipeline.instances, pipeline.replicas, pipeline.ipus_per_replica, options)


def launch(run: Run | None, processes: int, hosts: int = 1) -> list[str]:
    """Return the command prefix that starts a step; `run` is None for jobs other than training."""
    pipeline = None if run is None or DEVICES[run.device].simulator is None else run.pipeline
    if pipeline is not None and pipeline.instances > 1:
        return launcher(pipeline)
    return ranks.launcher(processes, hosts)


def find_instance(pipeline: Pipeline, environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the index of this process among the instances of a pipeline, from 0, and their count."""
    found = {name: environment[name] for name in (TOTAL, LOCAL, OFFSET, IPUS) if name in environment}
    start = f"start it as `{shlex.join(launcher(pipeline))} ...`" if pipeline.instances > 1 else "start it without PopRun"
    if not found:
        if pipeline.instances > 1:
            raise RelmError(f"pipeline.instances is {pipeline.instances}, but PopRun did not start this process; {start}")
        return 0, 1
    local = pipeline.replicas // pipeline.instances
    wanted = {TOTAL: pipeline.replicas, LOCAL: local, IPUS: pipeline.ipus_per_replica}
    for name, value in wanted.items():
        if name in found and found[name] != str(value):
            unset = f", or unset {name} if PopRun did not start this process" if pipeline.instances == 1 else ""
            raise RelmError(f"{name} is {found[name]!r}, expected {value} by the recipe's pipeline; {start}{unset}")
    missing = [name for name in (TOTAL, LOCAL, OFFSET) if name not in found]
    if missing:
        raise RelmError(
            f"{', '.join(found)} {'is' if len(found) == 1 else 'are'} set, but {' and '.join(missing)} not. PopRun sets all of "
            f"them: unset those that it did not set, and {start}"
        )
    if not found[OFFSET].isdigit() or int(found[OFFSET]) % local or int(found[OFFSET]) >= pipeline.replicas:
        raise RelmError(
            f"{OFFSET} is {found[OFFSET]!r}, expected a multiple of {local}, the replicas of each instance, below "
            f"{pipeline.replicas}; {start}"
        )
    return int(found[OFFSET]) // local, pipeline.instances
