"""A broken extension ends in one message that names it and its fault, for a command and for the graph."""

from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.declaration import EXTENSIONS, load
from small_project import Commands

OPTIMIZER = """
from relm.recipes.optimization import OptimizerDeclaration, register_optimizer
from relm.recipes.section import Section

class Options(Section):
    share: float{default}

register_optimizer(OptimizerDeclaration("{name}", "torch:nothing", lambda shape, settings: 0, options=Options))
"""
EVALUATION = """
from relm.recipes.evaluation.evaluations import EvaluationDeclaration
from relm.recipes.recipe import register_evaluation
from relm.recipes.section import Section

class Options(Section):
    {option}: int = 1

register_evaluation(EvaluationDeclaration("{name}", "{summary}", "json:loads", inputs=(), options=Options))
"""
FAULTS = {
    "syntax": ("def x(:", "line 1: SyntaxError: invalid syntax; correct or remove it"),
    "imports": ("\nfrom relm.errors import Nothing", "broken.py, line 2: ImportError: cannot import name 'Nothing'"),
    "name": (OPTIMIZER.format(name="adamw", default=" = 1.0"), "optimizer adamw: is declared already"),
    "key": (OPTIMIZER.format(name="betas", default=" = 1.0"), "betas: its options cannot have this key, which Optimizer has"),
    "default": (OPTIMIZER.format(name="wild", default=""), "ValidationError: 1 validation error for "),
}


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("generate", "size", "evaluation generate: relm has a step 'generate' already; give the evaluation another command"),
        ("held-out", "size", "evaluation held-out: relm has a step 'held-out' already; give the evaluation another command"),
        ("report", "size", "evaluation report: relm has a step 'report' already; give the evaluation another command"),
        (
            "toy",
            "batch_tokens",
            "evaluation toy: option batch_tokens is an argument of its command already; give it another name",
        ),
        ("toy", "step", "evaluation toy: option step is an argument of its command already; give it another name"),
    ],
)
def test_a_command_reports_an_evaluation_that_cannot_be_one(name: str, option: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(EVALUATION.format(name=name, option=option, summary="a toy"))
    done = Commands(tmp_path).relm("--help", **{EXTENSIONS: "broken", "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (1, f"relm: {message}\n")


@pytest.mark.parametrize("summary", ["the share in % of all", ""])
def test_any_summary_can_be_printed(summary: str, tmp_path: Path) -> None:
    (tmp_path / "toys.py").write_text(EVALUATION.format(name="toy", option="size", summary=summary))
    for words in (["--help"], ["toy", "--help"]):
        done = Commands(tmp_path).relm(*words, **{EXTENSIONS: "toys", "PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        assert summary[1:] in done.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_a_command_reports_a_broken_extension(fault: str, tmp_path: Path) -> None:
    content, message = FAULTS[fault]
    (tmp_path / "broken.py").write_text(content)
    done = Commands(tmp_path).relm("list", **{EXTENSIONS: "broken", "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith("relm: RELM_EXTENSIONS: broken: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_graph_reports_a_broken_extension(project: Commands) -> None:
    (project.folder / "broken.py").write_text(FAULTS["name"][0])
    done = project.snakemake("results/tiny", "--dry-run", **{EXTENSIONS: "broken", "PYTHONPATH": str(project.folder)})
    assert done.returncode == 1
    assert done.stdout.startswith("RELM_EXTENSIONS: broken: optimizer adamw: is declared already;")
    assert "WorkflowError" not in done.stdout


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("relm.nothing:build", "relm.nothing:build: No module named 'relm.nothing'; correct the reference"),
        ("relm.errors:build", "relm.errors:build: the module has no 'build'"),
        ("relm.errors", "relm.errors: the module has no ''; the declaration refers to code as module:name"),
    ],
)
def test_a_wrong_reference_is_named(reference: str, message: str) -> None:
    with pytest.raises(RelmError) as error:
        load(reference)
    assert str(error.value).startswith(message)
