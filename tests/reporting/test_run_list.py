"""`relm list`: all runs, one run on every machine, and every run on one machine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relm.cli import main
from relm.recipes.project import Project
from relm.reporting.run_list import WIDTH, describe_machine_runs, describe_run_on_machines, describe_runs
from small_project import CHECKOUT, Commands


def copy_recipes(folder: Path, *runs: str) -> None:
    """Copy the shipped machines, data and models, and of the runs those that are named and what they extend."""
    shutil.copytree(
        CHECKOUT / "recipes",
        folder / "recipes",
        ignore=lambda at, names: [
            name
            for name in names
            if Path(at) == CHECKOUT / "recipes" and name.endswith(".yaml") and name.removesuffix(".yaml") not in runs
        ],
    )


def machines_of(name: str, folder: Path = CHECKOUT) -> dict[str, str]:
    """Return machine -> the figures in its row, of a run."""
    rows = re.findall(rf"^{name}@(\S+) +(.*)$", describe_run_on_machines(Project(folder), name), re.M)
    return {machine: re.sub(" +", " ", figures) for machine, figures in rows}


def test_the_table_has_each_run_by_paper_in_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    table = describe_runs(Project(CHECKOUT))
    assert re.search(r"^shakespeare_char +cpu +804 k +\d+ min  done ", table, re.MULTILINE), "as the published run has it"
    assert max(map(len, table.splitlines())) <= WIDTH == 100
    names = re.findall(r"^(\w\S*)  +(?:\w[\w-]*)  +[\d.]+ [kMB]  ", table, re.MULTILINE)
    assert sorted(names) == Project(CHECKOUT).names()
    assert names[-1] == "quickstart", "it has no paper"
    headings = re.findall(r"^.* \[paper_\w+\]$", table, re.MULTILINE)
    assert "LM Pretraining with Pytorch/TPU [paper_tpu_pretrain]" in headings
    assert len(headings) == len(set(headings)) == 8
    assert re.search(r"^roberta_base_v3-8 +v3-8 +125 M +(< 1 min|\d+ min)", table, re.MULTILINE)


def test_the_table_shows_what_is_done_and_the_state_of_the_others(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    (project.folder / Project().plan("tiny").run_folder).mkdir(parents=True)
    assert re.search(r"^tiny +cpu .* stopped  As small as can be$", describe_runs(Project()), re.MULTILINE)
    (project.folder / "results" / "tiny").mkdir(parents=True)
    assert re.search(r"^tiny +cpu .* done ", describe_runs(Project()), re.MULTILINE)


def test_a_run_has_a_row_for_every_machine_that_can_train_it() -> None:
    found = machines_of("roberta_base_v3-8")
    assert set(found) == {
        "a100",
        "a100-8",
        "cpu",
        "h100",
        "h100-8",
        "h100-8x2",
        "l4",
        "rtx4090",
        "v3-8",
        "v4-8",
        "v5e-8",
        "v5p-8",
        "v6e-8",
    }
    assert re.match(r"(\d+ min|\d+\.\d h) \$\d+\.\d\d \d+ ", found["h100"])
    assert re.match(r"\d+ min \d+ [\d.]+ GB of 25\.8 GB$", found["rtx4090"])
    assert "its own machine is v3-8\n" in describe_run_on_machines(Project(CHECKOUT), "roberta_base_v3-8")


def test_a_run_on_ipus_is_listed_on_the_machines_that_its_recipe_has_a_pipeline_for() -> None:
    found = machines_of("gpt2_small_pod16")
    assert {"pod16", "cpu", "h100"} <= set(found)
    assert not {"ipu", "pod64"} & set(found)
    listed = describe_machine_runs(Project(CHECKOUT), "ipu")
    assert re.findall(r"^(\S+)@ipu ", listed, re.M) == ["bert_tiny_ipu"]
    assert re.search(r"^\d+ recipes have no on.ipu.pipeline, without which they do not run there.$", listed, re.M)


def test_a_machine_whose_devices_do_not_divide_the_batch_is_named_as_such() -> None:
    found = machines_of("shakespeare_char")
    assert found["v5e-8"] == "its 8 devices do not divide the global batch" == found["h100-8"]
    assert "divide" not in found["v4-8"]


def test_a_run_that_does_not_fit_is_marked(tmp_path: Path) -> None:
    copy_recipes(tmp_path, "bert_large_wikitext103_v3-8_fp32")
    small = tmp_path / "recipes" / "machines" / "rtx4090.yaml"
    small.write_text(small.read_text().replace("memory_gib: 24", "memory_gib: 4"))
    assert machines_of("bert_large_wikitext103_v3-8_fp32", tmp_path)["rtx4090"].startswith("too large: ")


def test_machines_with_faults_and_files_without_a_machines_name_are_listed(tmp_path: Path) -> None:
    copy_recipes(tmp_path, "quickstart")
    (tmp_path / "recipes" / "machines" / "mine.yaml").write_text("title: Mine\n")
    for name in ("my box.yaml", ".#h100.yaml"):
        shutil.copy(CHECKOUT / "recipes/machines/h100.yaml", tmp_path / "recipes" / "machines" / name)
    listed = " ".join(describe_runs(Project(tmp_path)).split())
    assert re.search(r"@mine has faults: \S*mine.yaml: 1 error: device: missing", listed)
    assert f"{tmp_path}/recipes/machines/'my box.yaml': cannot be a machine's name, which begins with a letter or" in listed
    assert "#h100" not in listed


def test_one_machine_alone_has_hours_memory_and_micro_batch_of_each_run() -> None:
    output = describe_machine_runs(Project(CHECKOUT), "rtx4090")
    assert max(map(len, output.splitlines())) <= 120
    assert output.startswith("rtx4090: One NVIDIA GeForce RTX 4090, 24 GB\n")
    assert re.search(r"^roberta_base_v3-8@rtx4090 +\d+ min +\d+ +[\d.]+ GB of 25\.8 GB$", output, re.M)
    eight = describe_machine_runs(Project(CHECKOUT), "h100-8")
    assert re.search(r"^shakespeare_char@h100-8 +its 8 devices do not divide the global batch$", eight, re.M)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("@rtx490", "relm list: @rtx490: there is no machine 'rtx490'; did you mean rtx4090?\n"),
        (
            "qickstart",
            "relm list: there is no recipe 'qickstart' (recipes/qickstart.yaml does not exist); did you mean "
            "results/quickstart?\n",
        ),
    ],
)
def test_an_unknown_name_is_refused(
    given: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert main(["list", given]) == 1
    assert capsys.readouterr().err == message


def test_a_run_with_results_is_marked_with_the_machine_that_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_recipes(tmp_path, "quickstart", "shakespeare_char")
    (tmp_path / "results" / "quickstart@h100").mkdir(parents=True)
    (tmp_path / "results" / "shakespeare_char").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [machine for machine, row in machines_of("quickstart", Path()).items() if row.endswith("; done")] == ["h100"]
    assert [machine for machine, row in machines_of("shakespeare_char", Path()).items() if row.endswith("; done")] == ["cpu"]
    assert re.search(r"^shakespeare_char .* done  ", describe_runs(Project()), re.M)
    assert not re.search(r"^quickstart .* done", describe_runs(Project()), re.M)


def test_the_list_needs_no_torch() -> None:
    script = "import sys; from relm.cli import main; main(['list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True).returncode == 0


def test_a_reader_that_ends_early_is_no_fault() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m relm list | true; echo ${{PIPESTATUS[0]}}"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_recipe_that_names_no_machine_is_the_cpus(tmp_path: Path) -> None:
    copy_recipes(tmp_path, "quickstart")
    (tmp_path / "recipes" / "mine.yaml").write_text("extends: quickstart\ntitle: Mine\nrun: {machine: null}\n")
    assert "its own machine is cpu\n" in describe_run_on_machines(Project(tmp_path), "mine")
