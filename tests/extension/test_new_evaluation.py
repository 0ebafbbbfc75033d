"""The graph runs an evaluation that is declared outside the package like a built-in one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from extended_process import extended_environment
from safetensors.numpy import save_file

from small_project import Commands


def test_the_graph_runs_an_evaluation_from_outside(finished_copy: Commands) -> None:
    recipe, extension = finished_copy.folder / "recipes" / "tiny.yaml", extended_environment("largest_weight", {})
    right = recipe.read_text().replace("[held_out, samples]", "[largest_weight]\nlargest_weight: {factor: 3}")
    recipe.write_text(right)
    done = finished_copy.snakemake("results/tiny", **extension)
    assert done.returncode == 0, done.stdout
    assert "pretrain main" not in done.stdout
    result = json.loads((finished_copy.folder / "results/tiny/eval/largest_weight.json").read_text())
    assert result["figures"]["scaled"] == 3 * result["figures"]["largest"] > 0
    assert result["protocol"]["context"] == 32
    for old, new, hint in (("factor: 3", "factr: 3", "factor"), ("[largest_weight]", "[largest_weigt]", "largest_weight")):
        recipe.write_text(right.replace(old, new))
        assert f"did you mean {hint}?" in finished_copy.snakemake("results/tiny", "--dry-run", **extension).stdout


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """A folder with a model of two weights."""
    save_file({"a": np.array([-4, 1], np.float32), "b": np.array([3], np.float32)}, tmp_path / "model.safetensors")
    return Commands(tmp_path)


def figures(commands: Commands, name: str) -> dict[str, float]:
    found: dict[str, float] = json.loads((commands.folder / name).read_text())["figures"]
    return found


def test_it_has_its_own_command_that_writes_what_its_job_does(commands: Commands) -> None:
    extension = extended_environment("largest_weight", {})
    words = ["largest-weight", "--model", ".", "--context", "8", "--factor", "3", "--output", "largest_weight.json"]
    done = commands.relm(*words, **extension)
    assert (done.returncode, done.stdout) == (0, "largest-weight: the largest weight is 4.0000\n"), done.stderr
    assert figures(commands, "largest_weight.json") == {"largest": 4, "scaled": 12}
    job = json.dumps({"evaluation": "largest_weight", "context": 8, "options": {"factor": 3}})
    done = commands.relm("largest-weight", "--job", job, "--model", ".", "--output", "by_job.json", **extension)
    assert done.returncode == 0, done.stderr
    assert (commands.folder / "by_job.json").read_bytes() == (commands.folder / "largest_weight.json").read_bytes()
    assert (commands.folder / "largest_weight.json.record.json").exists()


@pytest.mark.full
def test_options_of_every_kind_are_arguments(commands: Commands) -> None:
    words = ["largest-weight", "--model", ".", "--context", "8", "--output", "a.json"]
    extension = extended_environment("largest_weight", {})
    for options, expected in ((["--signed", "true"], 3), (["--signed", "false"], 4), (["--weights", "b"], 3)):
        done = commands.relm(*words, *options, **extension)
        assert done.returncode == 0, done.stderr
        assert figures(commands, "a.json")["largest"] == expected
    done = commands.relm(*words, "--signed", "{", **extension)
    assert done.returncode == 2
    assert "argument --signed: invalid" in done.stderr


def test_the_help_lists_it_and_imports_no_torch(commands: Commands) -> None:
    code = "import sys; from relm.cli import main; sys.modules['torch'] = None; sys.exit(main(sys.argv[1:]))"
    environment = extended_environment("largest_weight", commands.environment)
    for words, text in ((["--help"], "  largest-weight "), (["largest-weight", "--help"], "Names of the weights that count")):
        done = subprocess.run([sys.executable, "-c", code, *words], env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout
    assert "largest-weight" not in commands.relm("--help").stdout
