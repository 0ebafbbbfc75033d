"""The worker of IPU runs in Python 3.8 with torch 2.0.1, and PopTorch's front-end there: `make test-py38` runs these tests.

It names the interpreter in RELM_TEST_PYTHON38, and a folder with PopTorch's source, if there is one, in RELM_TEST_POPTORCH.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config
from small_project import CHECKOUT, make_project
from small_tokenizers import save_byte_level

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
# The small project's recipe, as a run on a Pod with the plan of GPT-2 small; its twin trains through the simulator.
RECIPE = """
title: As small as can be, on IPUs
data: {dataset: sample}
tokenizer: {train: byte_level_bpe, vocabulary_size: 400}
model: {architecture: gpt2, layers: 12, heads: 2, hidden_size: 32, positions: 32, vocabulary_size: 512, dropout: 0.0}
pretrain:
  main:
    objective: causal
    sequence_length: 32
    global_batch_size: 8192
    steps: 16
    optimizer: {learning_rate: 1e-3, epsilon: 1e-6}
    schedule: {name: cosine, warmup_steps: 1, updates_per_step: 8}
evaluate: [training]
run: {machine: pod16, checkpoint_interval: 8, log_interval: 8}
on:
  pod16:
    pipeline:
      layers_per_ipu: [0, 4, 4, 4]
      position_embedding: 1
      replicas: 4
      gradient_accumulation: 2048
      device_iterations: 8
      vocabulary_serialisation: 4
      loss_chunk: 16
      stochastic_rounding: false
      precision: float32
deviations: [It has not been run on an IPU.]
"""


@pytest.fixture(scope="module")
def python() -> str:
    if "RELM_TEST_PYTHON38" not in os.environ:
        pytest.skip("`make test-py38` makes the environment with Python 3.8 and torch 2.0.1")
    return os.environ["RELM_TEST_PYTHON38"]


def train_twin(folder: Path, **environment: str) -> Path:
    """Return the published folder of the twin of RECIPE."""
    folder.mkdir()
    project = make_project(folder)
    (folder / "recipes" / "machines").symlink_to(CHECKOUT / "recipes" / "machines")
    (folder / "recipes" / "tiny.yaml").write_text(RECIPE)
    done = project.snakemake("results/smoke/tiny", **environment)
    assert done.returncode == 0, done.stdout[-4000:]
    return folder / "results" / "smoke" / "tiny"


def test_a_twin_trained_in_python_3_8_has_the_weights_of_relms_own_python(python: str, tmp_path: Path) -> None:
    own = train_twin(tmp_path / "own")
    other = train_twin(tmp_path / "other", RELM_IPU_PYTHON=python)
    assert '"torch": "2.0.1' in (other / "checkpoints.jsonl").read_text()
    assert '"torch": "2.0.1' not in (own / "checkpoints.jsonl").read_text()
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (own, other))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=0, atol=1e-5, msg=name)


def test_the_tests_against_poptorchs_front_end_pass(python: str, tmp_path: Path) -> None:
    """Over a stand-in for its compiled half, unless PopTorch is installed whole."""
    path = [str(CHECKOUT / "src"), str(HERE)]
    if source := os.environ.get("RELM_TEST_POPTORCH"):
        path.insert(0, str(front_end(Path(source), tmp_path)))
    command = [python, "-m", "pytest", "--noconftest", "-c", "/dev/null", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *map(str, sorted(HERE.glob("test_poptorch*_contract.py")))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not source and "2 skipped" in done.stdout:
        pytest.skip("there is no PopTorch; `make test-py38 POPTORCH=folder` takes a copy of its source, branch sdk-release-3.4")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_command_writes_through_poptorchs_front_end_what_the_cpu_writes(python: str, tmp_path: Path) -> None:
    """The program of a whole text, a loop on one IPU, is traced by PopTorch's own code and replayed by the stand-in."""
    if not (source := os.environ.get("RELM_TEST_POPTORCH")):
        pytest.skip("there is no copy of PopTorch's source; `make test-py38 POPTORCH=folder` takes one")
    model = Gpt2(Gpt2Config(2, 2, 32, positions=112, vocabulary_size=262, initializer_range=0.3))
    model.initialise(torch.Generator().manual_seed(0))
    model.save_folder(tmp_path, {})
    save_byte_level(tmp_path / "tokenizer.json")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RELM_IPU_PYTHON": python}
    environment["PYTHONPATH"] = os.pathsep.join([str(front_end(Path(source), tmp_path / "front_end")), str(CHECKOUT / "src")])
    texts = []
    for device in ("ipu", "cpu"):
        words = ["--model", str(tmp_path), "--prompt", "ab", "cde", "--greedy", "--length", "100", "--device", device]
        output = tmp_path / f"{device}.jsonl"
        command = [sys.executable, "-m", "relm", "generate", *words, "--threads", "1", "--output", str(output)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert "each token takes a call of the device" not in done.stdout + done.stderr
        texts.append(output.read_text())
    assert texts[0] == texts[1]


def front_end(source: Path, folder: Path) -> Path:
    """Return a folder with the package `poptorch` of a copy of its source, the compiled half replaced by the stand-in."""
    package = folder / "poptorch"
    shutil.copytree(source / "python", package)
    text = (package / "__init__.py").read_text()
    for name, value in {"@TORCH_VERSION@": "2.0.1", "@VERSION@": "3.4.0", "@SNAPSHOT@": "stand_in"}.items():
        text = text.replace(name, value)
    (package / "__init__.py").write_text(text)
    shutil.copy(HERE / "poptorch_core_stand_in.py", package / "poptorch_core.py")
    return folder


def test_the_environment_is_that_of_graphcores_image(python: str) -> None:
    script = "import sys, torch; print(*sys.version_info[:2], torch.__version__.split('+')[0])"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "8", "2.0.1"]
