"""Every step is a command that explains itself, and a user's mistake ends in one message."""

import contextlib
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from relm.cli import main
from relm.forecast import doctor
from relm.recipes.project import Project
from relm.reporting import run_list
from relm.steps import list_steps
from small_documents import write_texts
from small_project import Commands


@pytest.mark.parametrize("step", list_steps())
def test_every_step_has_help(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([step, "--help"])
    assert list_steps()[step].help[1:20] in re.sub(r"\s+", " ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "tyni"], "did you mean results/tiny?"),
        (
            ["status", "/elsewhere/recipes/tiny.yaml"],
            "there is no recipe '/elsewhere/recipes/tiny.yaml'; did you mean results/tiny?",
        ),
        (
            ["status", "results/tyni"],
            "there is no recipe 'tyni' (recipes/tyni.yaml does not exist); did you mean results/tiny?",
        ),
        (
            ["perplexity", "--model", "recipes", "--file", "a.txt", "--output", "a.json"],
            "recipes: no config.json in this folder",
        ),
        (
            ["download", "--dataset", "recipes/data/smple.yaml", "--file", "a", "--output", "x"],
            "smple.yaml: no such file (did you mean sample?)",
        ),
        (
            ["download", "--dataset", "recipes/data/sample.yaml", "--file", "a", "--output", "x"],
            "has no file 'a'; it has sample.xml",
        ),
        (["download", "--file", "a", "--output", "x"], "give one of --dataset, --model and --test"),
        (
            ["train-tokenizer", "--documents", "nowhere.jsonl", "--vocabulary-size", "300", "--output", "t.json"],
            "nowhere.jsonl",
        ),
        (
            ["pregenerate", "--tokenizer", "t.json", "--documents", "a", "b", "--output", "c"],
            "2 files of --documents need as many",
        ),
        (["pregenerate", "--tokenizer", "t.json", "--documents", "a.jsonl", "--output", "c.bin"], "t.json"),
        (["manifest", "--sidecars", "a.json", "--output", "m.json"], "expected a name like SHARD.train.bin.json"),
        (
            ["pretrain", "tiny", "--phase", "mian", "--manifest", "m", "--tokenizer", "t", "--output", "o"],
            "has no phase 'mian'; it has main",
        ),
        (
            ["pretrain", "tiny", "--phase", "main", "--manifest", "m", "--tokenizer", "t", "--output", "o", "--tpu-report"],
            "--tpu-report: recipe tiny has run.device: cpu; remove it",
        ),
        (
            ["pretrain", "tiny", "--phase", "main", "--manifest", "m", "--tokenizer", "t", "--output", "o", "--one-tpu"],
            "--one-tpu: recipe tiny has run.device: cpu; remove it",
        ),
        (["verify", "tiny", "--fingerprint", "0123456789ab", "--model", "m", "--output", "v"], "was planned for 0123456789ab"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_mistake_ends_in_one_message(
    arguments: list[str],
    message: str,
    project: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project.folder)
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith(f"relm {arguments[0]}: ")
    assert printed.out == ""


def test_a_mistake_is_printed_without_a_traceback(project: Commands) -> None:
    done = project.relm("status", "tyni")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"relm status: .*did you mean results/tiny\?\n", done.stderr)


@pytest.mark.parametrize("name", ["tiny", "results/tiny", "results/tiny/", "recipes/tiny.yaml"])
def test_a_recipe_is_found_by_the_path_that_a_shell_completes(name: str, project: Commands) -> None:
    done = project.relm("status", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny: fingerprint ")


def test_a_step_prints_one_line_and_leaves_a_record_and_a_log(project: Commands) -> None:
    arguments = [
        "--dataset",
        "recipes/data/sample.yaml",
        "--file",
        "sample.xml",
        "--output",
        "here/sample.xml",
        "--log",
        "step.log",
    ]
    done = project.relm("download", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("download: ")
    assert (project.folder / "step.log").read_text().endswith(done.stdout)
    assert (project.folder / "here" / "sample.xml.record.json").exists()


def test_the_steps_run_one_after_another_without_snakemake(project: Commands) -> None:
    def step(*arguments: str) -> None:
        done = project.relm(*arguments)
        assert done.returncode == 0, done.stderr

    dataset = ("--dataset", "recipes/data/sample.yaml")
    step("download", *dataset, "--file", "sample.xml", "--output", "sample.xml")
    step("extract", *dataset, "--source", "sample.xml", "--train", "a.train.jsonl", "--held-out", "a.held_out.jsonl")
    step("train-tokenizer", "--documents", "a.train.jsonl", "--vocabulary-size", "400", "--output", "tokenizer.json")
    documents, outputs = ("a.train.jsonl", "a.held_out.jsonl"), ("a.train.bin", "a.held_out.bin")
    step("pregenerate", "--tokenizer", "tokenizer.json", "--documents", *documents, "--output", *outputs)
    step("manifest", "--sidecars", "a.train.bin.json", "a.held_out.bin.json", "--output", "manifest.json")
    model = "run/main/model/model.safetensors"
    step(
        "pretrain", "tiny", "--phase", "main", "--manifest", "manifest.json", "--tokenizer", "tokenizer.json", "--output", model
    )
    step("held-out", "--model", model, "--manifest", "manifest.json", "--context", "32", "--output", "eval/held_out.json")
    step("samples", "--model", model, "--prompt", "The ", "--output", "eval/samples.json")
    step(
        "verify",
        "tiny",
        "--model",
        model,
        "--evaluations",
        "eval/held_out.json",
        "eval/samples.json",
        "--output",
        "verify.json",
    )
    assert (project.folder / "verify.json").exists()


def test_doctor_and_list_answer_on_any_machine(project: Commands) -> None:
    doctor = project.relm("doctor", HF_TOKEN="hf_secret_of_the_test")
    assert doctor.returncode == 0, doctor.stderr
    assert re.search(r"^cuda\s+(yes|no): ", doctor.stdout, re.M)
    assert re.search(r"^HF_TOKEN +set$", doctor.stdout, re.M)
    assert re.search(r"^ipu_simulator +yes: pipelines .* on the CPU", doctor.stdout, re.M)
    assert "hf_secret" not in doctor.stdout + doctor.stderr
    assert re.search(r"^tiny .*As small as can be$", project.relm("list").stdout, re.M)


def test_status_lists_steps_done_running_and_left(finished_copy: Commands, project: Commands) -> None:
    before = project.relm("status", "tiny").stdout
    assert re.search(r"^  download +left$", before, re.M)
    assert re.search(r"^  pretrain +main: left$", before, re.M)
    assert before.endswith("next: snakemake results/tiny\n")
    after = finished_copy.relm("status", "tiny").stdout
    assert "left" not in after
    assert re.search(r"^  pretrain +main: done, step 40 of 40, loss \d\.\d{3}$", after, re.M)


@pytest.mark.parametrize(("here", "mark"), [(True, "running, left"), (False, "left")])
def test_a_step_counts_as_running_in_its_own_checkout_only(here: bool, mark: str, project: Commands, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another checkout"
    elsewhere.mkdir()
    with contextlib.chdir(project.folder):
        verdict = Project().plan("tiny").verdict()
    waiting = [sys.executable, "-c", "input()", "relm", str(verdict)]
    with subprocess.Popen(waiting, cwd=project.folder if here else elsewhere, stdin=subprocess.PIPE) as process:
        try:
            output = project.relm("status", "tiny").stdout
        finally:
            process.kill()
    assert f"  verify       {mark}\n" in output


def test_a_disk_without_room_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "work/lock")

    monkeypatch.setattr(run_list, "describe_runs", full)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith("relm list: work/lock: No space left on device; is the disk full")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes"),
        RuntimeError("can't start new thread"),
    ],
    ids=str,
)
def test_a_lack_of_memory_is_a_message(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lack(*_: object) -> None:
        raise error

    monkeypatch.setattr(run_list, "describe_runs", lack)
    assert main(["list"]) == 1
    assert capsys.readouterr().err.startswith(f"relm list: memory ran out ({str(error) or 'no details'}); give the step more")


def test_another_fault_of_the_program_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the program")

    monkeypatch.setattr(run_list, "describe_runs", fail)
    with pytest.raises(RuntimeError, match="a fault of the program"):
        main(["list"])


def test_a_full_disk_under_the_output_is_a_message(project: Commands) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "relm", "list"],
            cwd=project.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "relm: cannot write the output: No space left on device\n")


def test_undecodable_bytes_are_reported_and_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_list, "describe_runs", lambda *_: "recipes/\udcff.yaml")
    assert main(["list", "--log", str(tmp_path / "log")]) == 0
    assert (tmp_path / "log").read_text().endswith("recipes/\\udcff.yaml\n")


def test_an_empty_path_and_a_folder_for_a_file_are_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").touch()
    words = [
        "import",
        "--format",
        "nanogpt",
        "--tokenizer",
        str(tmp_path / "tokenizer.json"),
        "--output",
        str(tmp_path / "y.bin"),
    ]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--files", ""])
    assert ended.value.code == 2
    assert "--files: expected a path, found an empty text; is a shell variable unset?" in capsys.readouterr().err
    assert main([*words, "--files", "."]) == 1
    assert capsys.readouterr().err.startswith("relm import: ")


@pytest.mark.timeout(20)
def test_an_output_that_is_an_input_or_another_output_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = write_texts(tmp_path / "a.jsonl", ["One text.", "one text."])
    before = documents.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(documents)
    assert main(["list-removed", "--duplicates", "--documents", str(documents), "--output", str(tmp_path / "link.jsonl")]) == 1
    assert "link.jsonl: is to be written, but is also read by the same command; choose another path" in capsys.readouterr().err
    both = ["--train", str(tmp_path / "b.jsonl"), "--held-out", str(tmp_path / "x" / ".." / "b.jsonl")]
    source = tmp_path / "enwik8"
    source.write_text("<mediawiki></mediawiki>")
    assert main(["extract", "--dataset", "recipes/data/enwik8.yaml", "--source", str(source), *both]) == 1
    assert "b.jsonl: is to be written, but is also written by the same command" in capsys.readouterr().err
    assert documents.read_bytes() == before
    assert not (tmp_path / "b.jsonl").exists()


def test_a_pipe_as_an_input_is_refused_and_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    output = str(tmp_path / "deep" / "model")
    assert (
        main(
            [
                "import",
                "--format",
                "llm_c",
                "--files",
                str(tmp_path / "pipe"),
                "--tokenizer",
                str(tmp_path / "pipe"),
                "--output",
                output,
            ]
        )
        == 1
    )
    assert "/pipe: is a named pipe, a socket or a device; expected a file" in capsys.readouterr().err
    assert not (tmp_path / "deep").exists()


def test_a_refused_step_leaves_no_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"no model")
    model = str(tmp_path / "model.bin")
    words = ["import", "--format", "llm_c", "--files", model, "--tokenizer", model, "--output"]
    assert main([*words, str(tmp_path / "new" / "model")]) == 1
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    assert main([*words, str(tmp_path / "old")]) == 1
    assert (tmp_path / "old").is_dir()


def test_doctor_reports_a_docker_whose_daemon_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = f"docker ({tmp_path}/docker), but its daemon DOES NOT ANSWER (Cannot connect to the Docker daemon): start it"
    assert doctor.describe_containers().startswith(expected)
