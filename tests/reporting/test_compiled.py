"""The TPU compiler's figures are on the report page, marked as such, and are published as the page shows them."""

import hashlib
import json
from typing import Any

import pytest

from finished_runs import FinishedRun
from made_compilation import compilation, program, refused
from relm.artifact import read_json
from relm.errors import RelmError
from relm.plan.products import published_files
from relm.reporting.publish import publish
from relm.training.machine.compile_record import Compilation, write_compilation


def compiled(run: Any, **changes: Any) -> Compilation:
    """Return a compilation of 50 steps of 4 sequences of 64 tokens: 2 s of operations, 4 s of memory."""
    programs = changes.pop("programs", (program("step", 123e12, 1800e9), program("held_out", 1e12, 1e9)))
    facts = {"recipe": run.plan.name, "sequences": {"main": 4}, "micro_batches": {"main": 4}, "programs": programs, **changes}
    return compilation(**facts)


def test_the_page_shows_the_compilers_figures_and_states_that_nothing_ran(run: FinishedRun) -> None:
    write_compilation(run.plan.compilation, compiled(run))
    report = run.read_page()
    assert "As compiled for v3-8 Nothing here was run." in report
    assert (
        "compiler (jax 0.7.1, libtpu 0.0.21) reports memory, operations and bytes for one core of 8; all times are arithmetic"
        in report
    )
    assert "step fits: 1.50 GiB at most of 15.00, 10%" in report
    assert "at least 4 s: operations 2 s at 61.5 TFLOP/s, memory 4 s at 450 GB/s; memory decides" in report
    # 4 x 64 tokens in 4 s; 50 steps of 4 s on four chips.
    assert "100% 4 s 64 0.06 0.22 50% 8 s 32 0.11 0.44" in report
    assert "one bfloat16 pass" in report


def test_a_program_that_does_not_fit_is_shown_without_times(run: FinishedRun) -> None:
    write_compilation(run.plan.compilation, compiled(run, programs=(refused("step"),)))
    report = run.read_page()
    assert "step DOES NOT FIT: 17.49GiB of 15.48GiB" in report
    assert "tokens/s" not in report


def test_provenance_has_its_hash_its_programs_and_their_compiler(run: FinishedRun) -> None:
    write_compilation(run.plan.compilation, compiled(run))
    run.read_page()
    publish(published_files(run.plan), run.plan.results)
    content = (run.plan.results / "compile.json").read_bytes()
    entry = read_json(run.plan.results / "provenance.json")["compiled"]
    assert (entry["sha256"], entry["size"]) == (hashlib.sha256(content).hexdigest(), len(content))
    assert entry["topology"] == "v3-8"
    assert entry["programs"][0] == {
        "phase": "main",
        "name": "step",
        "sha256": f"{'step':0<64}",
        "versions": {"jax": "0.7.1", "libtpu": "0.0.21"},
        "fits": True,
    }
    crate = json.dumps(read_json(run.plan.results / "ro-crate-metadata.json"))
    assert f'"name": "compile.json", "encodingFormat": "application/json", "contentSize": "{len(content)}"' in crate


def test_another_compilation_is_published_with_the_page_that_shows_it(run: FinishedRun) -> None:
    write_compilation(run.plan.compilation, compiled(run))
    run.read_page()
    write_compilation(run.plan.compilation, compiled(run, topology="v2-8"))
    with pytest.raises(RelmError, match=r"cannot be published without .*report\.html"):
        publish(published_files(run.plan), run.plan.results)
    run.read_page()
    publish(published_files(run.plan), run.plan.results)
    assert read_json(run.plan.results / "compile.json")["topology"] == "v2-8"


def test_without_it_the_report_does_not_mention_it(run: FinishedRun) -> None:
    before = run.read_page()
    files = {path.name: path.read_bytes() for path in run.plan.report_folder.iterdir()}
    assert "ompile" not in before.partition("Where everything came from")[0]
    assert "compiled" not in read_json(run.plan.report_folder / "provenance.json")
    write_compilation(run.plan.compilation, compiled(run))
    assert "As compiled" in run.read_page()
    run.plan.compilation.unlink()
    run.read_page()
    assert {path.name: path.read_bytes() for path in run.plan.report_folder.iterdir()} == files
    assert "compile.json" not in published_files(run.plan)


def test_one_of_another_batch_or_recipe_is_left_out_with_the_reason(run: FinishedRun) -> None:
    write_compilation(run.plan.compilation, compiled(run, sequences={"main": 8}))
    assert "As compiled compile.json is left out: phase main: compiled with global_batch_size 8" in run.read_page()
    assert "compile.json" not in published_files(run.plan)
    write_compilation(run.plan.compilation, compiled(run, recipe="another"))
    assert "compile.json is left out: it belongs to recipe another" in run.read_page()
    run.plan.compilation.write_text("{")
    assert "compile.json is left out: not valid JSON" in run.read_page()


def test_the_report_is_written_again_when_a_recipe_was_compiled(run: FinishedRun) -> None:
    before = run.plan.report_key
    write_compilation(run.plan.compilation, compiled(run))
    once = run.plan.report_key
    write_compilation(run.plan.compilation, compiled(run, topology="v2-8"))
    assert len({before, once, run.plan.report_key}) == 3
