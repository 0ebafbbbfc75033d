"""Dividing a batch among devices costs no memory beyond what one device needs for its part, and each draws its own dropout."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from relm.artifact import read_json, write_json
from relm.devices.tpu_options import VARIABLE
from relm.forecast.compilation.tpu_environment import run_module
from relm.training.machine.compile_record import Program

pytestmark = pytest.mark.full
STEP = Path(__file__).with_name("small_bert_step.py")
RNG = "xla_tpu_spmd_rng_bit_generator_unsafe"


def traced(folder: Path, devices: int) -> Program:
    """Return the program of the given count of devices, written to STEP.hlo of a folder."""
    variables = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    done = subprocess.run(
        [sys.executable, str(STEP), str(folder / "STEP.hlo")], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Program.model_validate_json(done.stdout.splitlines()[-1])


# The compiler process with one of its options turned round; it ignores those of the environment.
TURNED_ROUND = f"""
import os, sys
from pathlib import Path
from relm.forecast.compilation import tpu_compiler

def prepare_otherwise(layout, prepare=tpu_compiler.prepare_libtpu):
    prepare(layout)
    assert "--{RNG}=true" in os.environ["{VARIABLE}"]
    os.environ["{VARIABLE}"] = os.environ["{VARIABLE}"].replace("--{RNG}=true", "--{RNG}=false")

tpu_compiler.prepare_libtpu = prepare_otherwise
sys.exit(tpu_compiler.main(Path(sys.argv[1])))
"""


def temporaries(folder: Path, devices: int, drawn_for_all: bool = False) -> int:
    """Return bytes of a v3-8 core, without arguments and results; a program of one device runs on each of the 8 by itself."""
    folder.mkdir()
    program = traced(folder, devices)
    paths = {name: str(folder / name) for name in ("answer", "text", "source_text")}
    job = {"hlo": str(folder / "STEP.hlo"), "donated": program.donated, "layout": "v3:2x2", **paths}
    write_json(folder / "job", job)
    if drawn_for_all:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run([sys.executable, "-c", TURNED_ROUND, str(folder / "job")], env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        status = run_module("relm.forecast.compilation.tpu_compiler", [folder / "job"], variables, folder / "log", "compiling")
        assert status == 0, (folder / "log").read_text()
    assert ("all-reduce" in (folder / "text").read_text()) == (devices > 1)
    return int(read_json(folder / "answer")["memory"]["temporaries"])


def numbers_added_to_the_seed(text: str) -> set[str]:
    """The different ones of all cores, each of which takes its own out of one constant, for dropout's random numbers."""
    (constant,) = set(re.findall(r"dynamic-slice\(%([\w.]+), %partition-id\).*rng-bit-generator", text))
    return set(re.findall(rf"%{re.escape(constant)} = u32\[\d+\]\S* constant\(\{{([\d, ]+)\}}\)", text)[0].split(", "))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the bytes that a core needs for its part of the batch when there is no other core."""
    return temporaries(tmp_path_factory.mktemp("programs") / "alone", devices=1)


def test_the_program_of_8_devices_needs_no_more_temporaries_than_that_of_one(alone: int, tmp_path: Path) -> None:
    assert temporaries(tmp_path / "dealt_out", devices=8) <= alone
    assert len(numbers_added_to_the_seed((tmp_path / "dealt_out" / "text").read_text())) == 8


def test_it_would_if_every_core_drew_dropouts_random_numbers_for_the_whole_batch(alone: int, tmp_path: Path) -> None:
    """The compiler's own way: each core draws those of the global batch and discards all but an eighth, 48 MB for 22."""
    assert temporaries(tmp_path / "by_itself", devices=8, drawn_for_all=True) > 1.5 * alone
