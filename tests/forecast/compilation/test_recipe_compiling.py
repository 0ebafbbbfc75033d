"""The programs that a recipe requests, and the messages where they cannot be compiled or do not fit."""

import dataclasses
from pathlib import Path

import pytest

from relm.artifact import write_json
from relm.cli import main
from relm.errors import RelmError
from relm.forecast.compilation import compiling
from relm.forecast.compilation.compiling import (
    ProgramRequest,
    TracedProgram,
    compilation_of,
    compiled_from_answer,
    compiled_key,
    requests_of,
    topology_of,
)
from relm.forecast.compilation.consequences import format_memory
from relm.forecast.compilation.program_table import advice, describe_compilation
from relm.recipes.project import Project
from relm.recipes.run import Run
from relm.training.machine.compile_record import Program, read_compilation, write_compilation
from small_project import CHECKOUT

PLAN = Project(CHECKOUT).plan("roberta_base_v3-8")
PROGRAM = Program(sha256="ab" * 32, devices=8, arguments=3, donated=(0, 1), parameters=(32,))
VERSIONS = {"jax": "1", "jaxlib": "2", "libtpu": "3"}
MEMORY = {"peak": 2**33, "arguments": 2**32, "results": 2**32, "shared": 2**32, "temporaries": 2**31, "code": 2**20}
FITS = {
    "versions": VERSIONS,
    "seconds": 30.04,
    "capacity": 2**34,
    "memory": MEMORY,
    "flops": 1e12,
    "bytes_accessed": 2e10,
}
REFUSED = {
    "versions": VERSIONS,
    "seconds": 3.0,
    "capacity": 2**34,
    "refusal": "RESOURCE_EXHAUSTED: Ran out of memory. Used 17.49G of 15.48G hbm.\n",
}


def compilation(answer: dict[str, object]):
    traced = TracedProgram(ProgramRequest(PLAN.name, "main", "v3-8"), "step", PROGRAM, Path("0.hlo"), "50,265 tokens")
    text = "  %a = f32[4,8]{1,0} all-reduce(%b), channel_id=1"
    return compilation_of(PLAN, [(traced, compiled_from_answer(answer, text, "", PROGRAM, "v3:2x2"))])


def test_a_run_is_compiled_for_the_slice_of_its_machine() -> None:
    plan = Project(CHECKOUT).plan("roberta_base_v3-8@v5p-8")
    assert requests_of(PLAN) == [ProgramRequest("roberta_base_v3-8", "main", "v3-8")]
    assert requests_of(plan) == [ProgramRequest("roberta_base_v3-8@v5p-8", "main", "v5p-8")]


@pytest.mark.parametrize("name", ["roberta_base_v3-8@h100", "quickstart"])
def test_a_run_on_a_machine_without_tpus_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert main(["compile", name]) == 1
    recipe, _, machine = name.partition("@")
    found = f"machine {machine or 'cpu'} is not a slice of TPUs"
    assert capsys.readouterr().err == f"relm compile: {found}; name one, such as relm compile {recipe}@v3-8\n"


def test_a_run_on_ipus_is_refused_with_the_command_that_compiles_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert main(["compile", "bert_tiny_ipu"]) == 1
    assert "PopTorch compiles: run `relm rehearse bert_tiny_ipu --compile-only`" in capsys.readouterr().err


def test_a_recipe_with_only_the_device_is_rejected() -> None:
    recipe = PLAN.recipe.model_copy(update={"run": Run(device="tpu")})
    plan = dataclasses.replace(PLAN, recipe=recipe, machine=None)
    with pytest.raises(
        RelmError, match=r"^recipe roberta_base_v3-8 does not name a slice of TPUs; name one, such as relm compile"
    ):
        topology_of(plan)


def test_the_table_has_the_verdict_and_the_figures() -> None:
    words = describe_compilation(compilation(FITS))
    assert "phase main, step; program abababababab\n  memory       fits: 8.00 GiB at most of 16.00, 50%" in words
    assert "1e+12 operations, 2e+10 bytes" in words
    assert "collectives  1 all-reduce; 32 elements\n" in words
    assert advice(compilation(FITS)) == ""


def test_what_does_not_fit_is_refused_with_the_compilers_figure_and_the_keys_to_change() -> None:
    message = advice(compilation(REFUSED))
    assert "phase main, step: 17.49GiB of 15.48GiB" in message
    for key in ("run.micro_batch_size", "run.activation_checkpointing", "precision"):
        assert key in message
    assert "DOES NOT FIT" in describe_compilation(compilation(REFUSED))


def test_a_refusal_for_lack_of_another_memory_quotes_the_compiler() -> None:
    words = "Ran out of memory in memory space vmem"
    made = compilation({**REFUSED, "refusal": f"RESOURCE_EXHAUSTED: {words}\n"})
    assert f"phase main, step: {words}; make run.micro_batch_size smaller" in advice(made)
    assert format_memory(made.programs[0].compiled) == f"DOES NOT FIT: {words}"


@pytest.mark.parametrize(("answer", "status"), [(FITS, 0), (REFUSED, 1)])
def test_the_command_fails_where_a_program_does_not_fit_and_writes_what_was_found(
    answer: dict[str, object], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use a program that was traced and compiled before, since both need the TPU's environment."""
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    monkeypatch.setattr(compiling, "installed_versions", lambda: VERSIONS)
    requested = TracedProgram(ProgramRequest(PLAN.name, "main", "v3-8"), "step", PROGRAM, Path("0.hlo"), "50,265 tokens")
    monkeypatch.setattr(compiling, "trace_programs", lambda requests, folder: [requested])
    key, made = compiled_key(PROGRAM.sha256, "v3:2x2", VERSIONS), compiled_from_answer(answer, "", "", PROGRAM, "v3:2x2")
    write_json(tmp_path / "compiled" / f"{key}.json", made.model_dump(mode="json"))
    assert main(["compile", PLAN.name, "--anew", "--output", str(tmp_path / "compile.json")]) == status
    assert read_compilation(tmp_path / "compile.json").fits == (status == 0)
    message = capsys.readouterr()
    assert f"memory       {'DOES NOT FIT' if status else 'fits'}: " in message.out
    assert ("17.49GiB of 15.48GiB; make run.micro_batch_size smaller" in message.err) == (status == 1)


def test_compile_json_is_read_as_it_was_written_and_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "compile.json"
    write_compilation(path, compilation(FITS))
    assert read_compilation(path) == compilation(FITS)
    path.write_text('{"recipe": "x"}')
    with pytest.raises(RelmError, match=r"compile.json: not what this version of relm writes .* `relm compile`"):
        read_compilation(path)
