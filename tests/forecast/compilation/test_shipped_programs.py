"""The committed table of compiled programs."""

import threading
from pathlib import Path

import pytest
from test_recipe_compiling import FITS, PROGRAM, REFUSED, VERSIONS

from relm.cli import main
from relm.devices.tpu_options import OPTIONS
from relm.errors import RelmError
from relm.forecast.compilation import shipped_programs as module
from relm.forecast.compilation.compiling import HELD_OUT, ProgramRequest, TracedProgram, compiled_from_answer, compiled_key
from relm.forecast.compilation.consequences import step_programs
from relm.forecast.compilation.shipped_programs import (
    check,
    compile_missing,
    current_compilation,
    key_of,
    shipped_requests,
)
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.recipes.machine.topologies import TOPOLOGIES
from relm.recipes.project import Project
from relm.training.architecture import configuration
from relm.training.arithmetic import parameter_count
from relm.training.machine.compile_record import Row, RunFacts, Shipped, read_shipped, shipped_compilation
from relm.training.micro_batches import micro_batch_size, shorten_phase
from small_project import CHECKOUT

PROJECT = Project(CHECKOUT)
TRACED = [TracedProgram(ProgramRequest("a", "main", "v3-8"), "step", PROGRAM, Path("0.hlo"), "")]
KEY = compiled_key(PROGRAM.sha256, "v3:2x2", VERSIONS)
RUNS = {
    "a": RunFacts(
        fingerprint="0" * 12,
        sequences={"main": 16},
        micro_batches={"main": 16},
        activation_checkpointing=False,
        vocabulary="600 tokens",
        programs={"main": {"step": KEY}},
    )
}


def table(answer: dict[str, object]) -> Shipped:
    return Shipped(runs=RUNS, programs={KEY: compiled_from_answer(answer, "", "", PROGRAM, "v3:2x2")})


@pytest.fixture(autouse=True)
def same_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_versions", lambda: VERSIONS)


def test_a_table_of_todays_programs_is_current() -> None:
    check(table(FITS), RUNS)


@pytest.mark.parametrize("change", [{"fingerprint": "1" * 12}, {"programs": {"main": {"step": "another key"}}}])
def test_a_run_whose_recipe_or_program_changed_is_named(change: dict[str, object]) -> None:
    with pytest.raises(RelmError, match=r"docs/compiled.json is outdated: a; .* `make compile-all`"):
        check(table(FITS), {"a": RUNS["a"].model_copy(update=change)})


def test_a_program_that_is_not_compiled_yet_is_named() -> None:
    with pytest.raises(RelmError, match=r"docs/compiled.json is outdated: a; "):
        check(Shipped(runs=RUNS), RUNS)


def test_the_key_of_a_program_covers_the_compilers_versions_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of(TRACED[0]) == KEY
    monkeypatch.setitem(OPTIONS, "xla_tpu_an_option", True)
    with_option = key_of(TRACED[0])
    monkeypatch.setattr(module, "installed_versions", lambda: {"jax": "9"})
    assert len({KEY, with_option, key_of(TRACED[0])}) == 3


def test_a_recipe_that_does_not_fit_is_named() -> None:
    with pytest.raises(RelmError, match=r"docs/compiled.json: a does not fit; see `relm compile NAME`"):
        check(table(REFUSED), RUNS)


def test_the_table_has_the_figures_of_every_shipped_recipe_as_it_is_now() -> None:
    shipped = read_shipped()
    for name in {row.run for row in shipped.rows}:
        found = shipped_compilation(shipped, PROJECT.plan(name))
        assert found is not None
        assert [(each.phase, each.name) for each in found.programs] == [
            (row.phase, row.name) for row in shipped.rows if row.run == name
        ]


def test_the_table_has_no_figures_for_an_edited_recipe() -> None:
    shipped, plan = read_shipped(), PROJECT.plan("roberta_base_v3-8")
    name = "roberta_base_v3-8@v3-8"
    edited = {name: shipped.runs[name].model_copy(update={"fingerprint": "1" * 12})}
    with pytest.raises(
        RelmError, match=rf"has fingerprint {plan.fingerprint}, but docs/compiled.json has figures of 111111111111"
    ):
        shipped_compilation(shipped.model_copy(update={"runs": edited}), plan)
    assert shipped_compilation(Shipped(), plan) is None


def test_compile_prints_the_figures_of_a_shipped_recipe_without_the_compiler(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relm.forecast.compilation.compiling.compile_run", lambda *_: pytest.fail("something was compiled"))
    caplog.set_level("INFO")
    assert main(["compile", "roberta_base_v3-8@v5p-8"]) == 0
    assert "main, step" in capsys.readouterr().out
    assert "--anew compiles it here" in caplog.text


def test_a_recipe_with_another_micro_batch_is_compiled() -> None:
    plan, shipped = PROJECT.plan("roberta_base_v3-8"), read_shipped()
    assert current_compilation(shipped, plan, {}) == shipped_compilation(shipped, plan)
    assert current_compilation(shipped, plan, {"main": 8}) is None


def test_recipes_for_tpus_are_compiled_for_each_shipped_slice_of_tpus() -> None:
    found = {request.run for request in shipped_requests(PROJECT)}
    tpus = ("v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8")
    assert {name for name in found if name.startswith("roberta_base_v3-8@")} == {f"roberta_base_v3-8@{tpu}" for tpu in tpus}
    assert len(found) == 5 * len(tpus)
    assert not any(name.startswith(("quickstart", "shakespeare")) for name in found)


def test_what_is_known_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def compile_program(each: TracedProgram, stop: threading.Event):
        requested.append(each)
        return compiled_from_answer(FITS, "", "", PROGRAM, "v3:2x2")

    monkeypatch.setattr(module, "compile_program", compile_program)
    path = tmp_path / "compiled.json"
    made = compile_missing(Shipped(), TRACED, RUNS, path)
    assert requested == TRACED
    assert compile_missing(read_shipped(path), TRACED, RUNS, path) == made == read_shipped(path)
    assert requested == TRACED


def test_an_interrupt_stops_the_compilers_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [PROGRAM.model_copy(update={"sha256": digit * 64}) for digit in "ab"]
    traced = [TRACED[0]._replace(program=program) for program in programs]
    stopped = []

    def compile_program(each: TracedProgram, stop: threading.Event):
        if each.program == programs[0]:
            raise KeyboardInterrupt
        stopped.append(stop.wait(10))
        raise RelmError("stopped")

    monkeypatch.setattr(module, "compile_program", compile_program)
    monkeypatch.setattr(module, "concurrent_compilations", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        compile_missing(Shipped(), traced, RUNS, tmp_path / "compiled.json")
    assert stopped == [True]


def activation(row: Row) -> int:
    """Return the element count of a layer's activations on one device."""
    recipe = PROJECT.plan(row.run).recipe
    phase = recipe.pretrain[row.phase]
    sequences = micro_batch_size(phase, recipe.run.micro_batch_size, 1) // TOPOLOGIES[recipe.run.topology].devices
    return sequences * phase.sequence_length * recipe.model.hidden_size


def test_the_table_has_every_recipe_for_tpus_and_nothing_else() -> None:
    assert {row[:2] for row in read_shipped().rows} == {request[:2] for request in shipped_requests(PROJECT)}


def test_a_shipped_step_has_the_programs_of_its_micro_batches() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for row in read_shipped().rows:
        found.setdefault((row.run, row.phase), set()).add(row.name)
    for (name, phase), programs in found.items():
        recipe = PROJECT.plan(name).recipe
        settings = recipe.pretrain[phase]
        number = settings.global_batch_size // micro_batch_size(settings, recipe.run.micro_batch_size, 1)
        assert programs == {*step_programs(number), HELD_OUT}, name


def test_a_shortened_step_has_micro_batches_of_the_same_size() -> None:
    recipe = PROJECT.plan("roberta_base_v3-8_as_published").recipe
    fewer, settings = shorten_phase(recipe, "main", 3, 1)
    assert (settings.global_batch_size, micro_batch_size(settings, fewer.run.micro_batch_size, 1)) == (3 * 24, 24)
    assert shorten_phase(PROJECT.plan("roberta_base_v3-8").recipe, "main", 3, 1)[1].global_batch_size == 192


def test_every_shipped_program_fits_sums_gradients_and_sends_no_activation() -> None:
    found = read_shipped()
    for row in found.rows:
        made, plan = found.programs[row.key], PROJECT.plan(row.run)
        devices = TOPOLOGIES[plan.recipe.run.topology].devices
        assert made.fits, row
        assert all(size <= devices for kind, size in made.beyond_gradients.items() if kind != "all-reduce"), row
        assert all(size <= activation(row) / 2 for size in made.beyond_gradients.values()), row
        assert not any(made.findings.model_dump().values()), row
        if row.name != HELD_OUT:
            # Gradients may be summed with fewer elements: those of the 512 used positions of RoBERTa's 514.
            assert made.elements >= 0.999 * parameter_count(configuration(plan.recipe, tokenizer_of(plan)[0])), row
