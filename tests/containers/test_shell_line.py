"""A recorded step becomes lines for a shell: the very words, nothing of the machine, and a shell reads them so."""

import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from relm.containers.shell_line import docker_line, plain_line
from relm.devices.ranks import launcher
from relm.recipes.project import Project

ID = "sha256:" + "7" * 64
HELD_OUT = ["relm", "held-out", "--model", "work/a model.st", "--output", "work/$(touch /x).json", "--log", "it's"]


@pytest.fixture
def project(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The checkout's recipes and lock, in the current folder, free to be changed."""
    (tmp_path / "containers").mkdir()
    shutil.copyfile(checkout / "containers/lock.yaml", tmp_path / "containers/lock.yaml")
    (tmp_path / "recipes").symlink_to(checkout / "recipes")
    monkeypatch.chdir(tmp_path)
    return Project()


def with_lock(role: str, **changes: object) -> None:
    """Keys of a role's entry replaced."""
    path = Path("containers/lock.yaml")
    lock = yaml.safe_load(path.read_text())
    lock["images"][role] |= changes
    path.write_text(yaml.safe_dump(lock))


def words_read_by_a_shell(line: str, folder: Path, **environment: str) -> list[str]:
    """Return the words that a program gets when a shell runs the line with it instead of `docker` and `relm`."""
    program = folder / "bin" / "show"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)
    for name in ("docker", "relm"):
        (program.parent / name).unlink(missing_ok=True)
        (program.parent / name).symlink_to(program)
    variables = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": "/home/bob", **environment}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=variables, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def test_a_shell_reads_the_recorded_words_and_expands_nothing_of_them(project: Project, tmp_path: Path) -> None:
    assert words_read_by_a_shell(plain_line(HELD_OUT), tmp_path) == HELD_OUT[1:]
    line = docker_line(HELD_OUT, project).line
    assert line is not None
    assert words_read_by_a_shell(line, tmp_path)[-len(HELD_OUT) + 1 :] == HELD_OUT[1:]


def test_the_docker_line_mounts_the_checkout_where_it_is_and_nothing_else(project: Project, tmp_path: Path) -> None:
    line = docker_line(HELD_OUT, project).line
    assert line is not None
    assert str(tmp_path) not in line
    words = words_read_by_a_shell(line, tmp_path)
    assert [after for word, after in pairwise(words) if word == "--volume"] == [f"{tmp_path}:{tmp_path}"]
    assert words[words.index("--workdir") + 1] == str(tmp_path)
    ids = [subprocess.run(["id", flag], capture_output=True, text=True, check=True).stdout.strip() for flag in ("-u", "-g")]
    assert words[words.index("--user") + 1] == ":".join(ids)
    assert {"--read-only", "--cap-drop"} <= set(words)
    assert words[words.index("--network") + 1] == "none"


def test_a_home_folder_is_the_readers_own(project: Project, tmp_path: Path) -> None:
    argv = ["relm", "extract", "--source", "~/my texts", "--train", "~ is no folder"]
    assert words_read_by_a_shell(plain_line(argv), tmp_path) == [
        "extract",
        "--source",
        "/home/bob/my texts",
        *argv[4:5],
        argv[5],
    ]


def test_a_users_folder_is_mounted_read_only(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    texts = tmp_path.parent / "texts"
    dataset = {"title": "T", "licence": "MIT", "language": "en", "format": "text_files", "folder": "~/texts"}
    Path("mine.yaml").write_text(yaml.safe_dump(dataset))
    texts.mkdir(exist_ok=True)
    line = docker_line(["relm", "extract", "--dataset", "mine.yaml", "--source", "~/texts"], project).line
    assert line is not None
    assert '--volume "$HOME"/texts:"$HOME"/texts:ro' in line
    assert '--env RELM_HOME="$HOME" ' in line
    assert str(texts) not in line


def test_no_variable_stands_on_a_line_with_its_value(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HF_TOKEN": "hf_secret", "WANDB_API_KEY": "secret", "HTTPS_PROXY": "http://me:secret@proxy"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for given in (None, environment):
        line = docker_line(["relm", "download", "--dataset", "recipes/data/enwik8.yaml"], project, environment=given).line
        assert line is not None
        assert "--env HF_TOKEN " in line
        assert "secret" not in line


def test_a_training_step_has_its_devices_flags_and_several_processes_their_launcher(project: Project, tmp_path: Path) -> None:
    argv = [*launcher(4)[2:], "pretrain", "roberta_base_v3-8", "--phase", "main"]
    found = docker_line(argv, project)
    assert found.line is not None
    words = shlex.split(found.line)
    assert {"--privileged", "PJRT_DEVICE=TPU"} <= set(words)
    assert words[-len(argv) :] == [str(found.image), *argv[1:]]


def test_device_files_are_those_that_the_readers_machine_has(project: Project, tmp_path: Path) -> None:
    for name in ("ipu0", "ipu1"):
        (tmp_path / name).touch()
    with_lock("tpu", devices=[f"{tmp_path}/ipu*"])
    line = docker_line(["relm", "pretrain", "roberta_base_v3-8"], project).line
    assert line is not None
    words = words_read_by_a_shell(line, tmp_path)
    assert [after for word, after in pairwise(words) if word == "--device"] == [
        f"{tmp_path}/ipu0",
        f"{tmp_path}/ipu1",
    ]


def test_a_published_line_for_ipus_is_a_pods_and_one_for_this_machine_has_its_own_cards(
    project: Project, tmp_path: Path
) -> None:
    argv = ["relm", "pretrain", "gpt2_small_pod16", "--phase", "main"]
    published = shlex.split(str(docker_line(argv, project).line))
    assert published[published.index("--network") + 1] == "host"
    assert [after for word, after in pairwise(published) if word == "--device"] == ["/dev/infiniband"]
    assert {"IPC_LOCK", "memlock=-1:-1", "IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PARTITION_ID"} <= set(published)
    assert not [word for word in published if word.startswith("IPUOF_CONFIG_PATH")]  # a path of another machine
    (tmp_path / "ipu0").touch()
    with_lock("ipu", own_devices=[f"{tmp_path}/ipu*"])
    words = words_read_by_a_shell(str(docker_line(argv, project, environment={"HOME": "/home/bob"}).line), tmp_path)
    assert words[words.index("--network") + 1] == "none"
    assert [after for word, after in pairwise(words) if word == "--device"] == [f"{tmp_path}/ipu0"]


def test_an_image_without_a_verified_digest_is_named_by_its_tag_and_reported_as_unpinned(project: Project) -> None:
    found = docker_line(HELD_OUT, project)
    assert found.image == "relm/cpu:0.1.0"
    assert str(found.caveat).startswith("relm/cpu:0.1.0 is not pinned by a digest, because it was never published")
    with_lock("cpu", digest=ID, source="somewhere", checked="2026-01-01", verified=False)
    assert "its digest is not verified" in str(docker_line(HELD_OUT, project).caveat)
    with_lock("cpu", verified=True)
    assert (docker_line(HELD_OUT, project).image, docker_line(HELD_OUT, project).caveat) == (f"relm/cpu:0.1.0@{ID}", None)


def test_the_image_that_a_step_ran_in_is_the_one_on_its_line(project: Project) -> None:
    found = docker_line(HELD_OUT, project, ran_in=ID)
    assert found.line is not None
    assert f"--env RELM_IMAGE={ID} {ID} held-out" in found.line
    assert "with another id" in str(found.caveat)


def test_without_a_lock_there_is_no_line_and_the_reason_is_reported(project: Project) -> None:
    Path("containers/lock.yaml").unlink()
    found = docker_line(HELD_OUT, project)
    assert found.line is None
    assert "containers/lock.yaml: no such file" in str(found.caveat)


def test_a_work_folder_elsewhere_is_a_variable_that_is_mounted(
    project: Project, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("scratch")
    environment = {"RELM_WORK": str(elsewhere)}
    argv = ["relm", "held-out", "--model", "work/m"]
    plain = plain_line(argv, environment)
    assert plain == 'relm held-out --model "$RELM_WORK"/m'
    line = docker_line(argv, project, environment=environment).line
    assert line is not None
    words = words_read_by_a_shell(line, tmp_path, **environment)
    assert f"{elsewhere}:{elsewhere}" in words
    assert words[-1] == f"{elsewhere}/m"
    assert words[words.index("RELM_WORK") - 1] == "--env"
