"""Small recipes' programs, each traced in a separate process: a process has one count of devices."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

from relm.forecast.compilation.compiling import ProgramRequest, TracedProgram, trace_programs

RECIPE, TOPOLOGY = "smoke/roberta_base_v3-8", "v3-8"


def _folder() -> Path:
    """Return a folder that is removed when the tests end."""
    folder = Path(mkdtemp(prefix="relm-programs-"))
    atexit.register(shutil.rmtree, folder)
    return folder


def programs(folder: Path, *recipes: str) -> dict[tuple[str, str], TracedProgram]:
    """Return the programs of phase main by (recipe, name)."""
    requests = [ProgramRequest(recipe, "main", TOPOLOGY) for recipe in recipes]
    return {(each.request.run, each.name): each for each in trace_programs(requests, folder / "traced")}


@functools.cache
def small(name: str) -> TracedProgram:
    """Return a program of the small recipe."""
    return programs(_folder(), RECIPE)[RECIPE, name]


_REHEARSE = """
from relm.forecast.compilation.tracing import for_slice
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.recipes.project import Project
from relm.forecast.prepared_run import Rehearsal
from relm.forecast.rehearsal import rehearse
plan = Project().plan({recipe!r})
print(rehearse(Rehearsal(for_slice(plan.recipe, {topology!r}), "main", tokenizer_of(plan)[0], compile_only=True)))
"""


@functools.cache
def trained() -> str:
    """The text of the step's program as a trainer handed it to XLA, on a CPU with as many virtual devices."""
    folder = _folder()
    flags = f"--xla_dump_to={folder} --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = {**os.environ, "CPU_NUM_DEVICES": "8", "XLA_FLAGS": flags}
    script = _REHEARSE.format(recipe=RECIPE, topology=TOPOLOGY)
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=250)
    texts = [path.read_text() for path in folder.glob("*before_optimizations.txt")]
    return max(texts, key=len)


def operations(text: str) -> Counter[tuple[str, str]]:
    """Return (shape without layout, operation) of all instructions."""
    return Counter(re.findall(r"= (\(?[a-z]+\d*\[[\d,]*\]).*? ([a-z-]+)\(", text))


def donated_shapes(text: str) -> Counter[str]:
    """Return the arguments that a program's header marks as donated."""
    indices = [int(index) for index in re.findall(r"\((\d+), \{\}\)", text.partition("entry_computation_layout")[0])]
    found = re.findall(r"= ([a-z]+\d*\[[\d,]*\])\S* parameter\((\d+)\), sharding", text)
    by_place = {int(index): shape for shape, index in found}
    return Counter(by_place[index] for index in indices)
