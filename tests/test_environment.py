"""The locked environment: everything by hash, no CUDA by accident, and a plain message where a device has none yet."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("ipu", "poptorch comes only with Graphcore's Poplar SDK"),
        ("gpu", "DEVICE=gpu is unknown; one of cpu, cuda, tpu, ipu"),
    ],
)
def test_a_device_without_an_environment_says_what_to_do(device: str, message: str, checkout: Path) -> None:
    command = [sys.executable, "envs/make_environment.py", "--device", device]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("made_for", "given", "makes"),
    [
        (None, [], "cpu"),
        (None, ["DEVICE=cuda"], "cuda"),
        ("cpu", [], None),
        ("cpu", ["DEVICE=cpu"], None),
        ("cpu", ["DEVICE=cuda"], "cuda"),
        ("cuda", [], None),
        ("cuda", ["DEVICE=cpu"], "cpu"),
    ],
)
def test_make_environment_makes_another_one_only_for_another_device(
    made_for: str | None, given: list[str], makes: str | None, checkout: Path, tmp_path: Path
) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(checkout / name, tmp_path)
    shutil.copytree(checkout / "envs", tmp_path / "envs")
    if made_for:
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / "made-from").write_text(f"/cache/{made_for}-0123456789ab\n{tmp_path}/.venv\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("DEVICE", "MAKEFLAGS", "MAKEOVERRIDES")}
    done = subprocess.run(["make", "-n", *given, "environment"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"make_environment.py --device (\w+)", done.stdout) == ([makes] if makes else [])


@pytest.mark.parametrize(
    "lock",
    ["torch-cpu.txt", "torch-cuda.txt", "torch-tpu.txt", "cpu.txt", "loggers.txt", "test.txt", "harness.txt", "python38.txt"],
)
def test_every_locked_package_has_one_version_and_hashes(lock: str, checkout: Path) -> None:
    text = (checkout / "envs" / lock).read_text().replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line.strip() and not line.startswith(("#", "--"))]
    assert packages
    assert [line for line in packages if not re.match(r"^[\w.-]+(\[[\w,]+\])?==\S+.*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_the_cpu_environment_holds_no_cuda_and_torch_stands_alone(checkout: Path) -> None:
    locked = "".join((checkout / "envs" / name).read_text() for name in ("cpu.txt", "loggers.txt", "test.txt"))
    assert not re.search(r"^(torch|nvidia|triton|cuda)[\w-]*==", locked, re.M)
    torch = [line for line in (checkout / "envs" / "torch-cpu.txt").read_text().splitlines() if line[0] not in "#-"]
    assert len(torch) == 1
    assert torch[0].startswith("torch==2.13.0+cpu --hash=sha256:")


def test_the_tpu_environment_differs_from_the_cpu_one_only_in_torch_and_its_company(checkout: Path) -> None:
    versions = {
        lock: dict(re.findall(r"^([\w.-]+)==(\S+)", (checkout / "envs" / lock).read_text(), re.M))
        for lock in ("torch-tpu.txt", "cpu.txt", "loggers.txt", "test.txt")
    }
    assert (versions["torch-tpu.txt"]["torch"], versions["torch-tpu.txt"]["torch-xla"]) == ("2.9.0", "2.9.0")
    for lock in ("cpu.txt", "loggers.txt", "test.txt"):
        both = versions["torch-tpu.txt"].keys() & versions[lock].keys()
        assert {name: versions["torch-tpu.txt"][name] for name in both} == {name: versions[lock][name] for name in both}


def test_this_environment_is_the_locked_one(checkout: Path) -> None:
    """Every version in the locks is the version that is imported here."""
    from importlib.metadata import version

    for lock in ("cpu.txt", "loggers.txt"):
        for name, wanted in re.findall(r"^([\w.-]+)==(\S+)", (checkout / "envs" / lock).read_text(), re.M):
            assert version(name) == wanted, name


def names(lock: Path) -> set[str]:
    """Return the packages of a lock, in one spelling."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r"^([\w.-]+)==", lock.read_text(), re.M)}


def test_loggers_are_locked_apart_from_what_every_step_needs(checkout: Path) -> None:
    locks = checkout / "envs"
    assert {"tensorboard", "wandb", "sentry-sdk"} <= names(locks / "loggers.txt")
    assert names(locks / "loggers.txt") & names(locks / "cpu.txt") == set()


@pytest.mark.parametrize("below", ["torch-cpu.txt", "torch-cuda.txt", "cpu.txt", "loggers.txt", "test.txt"])
def test_the_harness_has_nothing_twice(below: str, checkout: Path) -> None:
    """It uses the packages of the environment below it in any version: one torch, one transformers."""
    locks = checkout / "envs"
    assert "lm-eval" in names(locks / "harness.txt")
    assert names(locks / "harness.txt") & names(locks / below) == set()


def test_the_harness_is_the_pinned_one_with_the_torch_and_transformers_of_this_environment(checkout: Path) -> None:
    python = Path(sys.prefix) / "harness" / "bin" / "python"
    if not python.exists():
        pytest.skip("the harness's environment is not there: make harness")
    program = (
        "from importlib.metadata import version; from importlib.util import find_spec\n"
        "print(version('lm_eval'), *(find_spec(name).origin for name in ('torch', 'transformers')), find_spec('relm'))"
    )
    output = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True).stdout.split()
    pinned = re.search(r"^lm-eval==(\S+)$", (checkout / "envs" / "harness.in").read_text(), re.M)
    assert pinned
    here = [find_spec(name) for name in ("torch", "transformers")]
    assert output == [pinned[1], *(str(found.origin) for found in here if found), "None"]


def test_the_harness_s_environment_is_another_one_when_any_lock_below_it_is(checkout: Path, tmp_path: Path) -> None:
    """Its name has the hash of all of them, so that none is ever on top of packages it was not checked with."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import make_environment as m; print(m.harness_name(m.find_locks('cpu')))"
    )
    found = []
    for changed in ("nothing.txt", "cpu.txt", "harness.txt"):
        folder = tmp_path / changed / "envs"
        shutil.copytree(checkout / "envs", folder)
        with open(folder / changed, "a") as file:
            file.write("# changed\n")
        done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    assert len(set(found)) == 3
    assert all(re.fullmatch(r"harness-[0-9a-f]{12}", name) for name in found)


def test_a_compiler_that_fails_without_a_word_is_reported(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "cc").chmod(0o755)
    code = "import make_environment as made, sys, pathlib; made.compile_module(made.COMPILED[0], pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(checkout / "envs")}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert "bzip2_walks.c was not compiled (cc ended with code 3)" in done.stdout


def test_a_module_compiled_from_another_source_is_not_used(checkout: Path, tmp_path: Path) -> None:
    compile_it = "import make_environment, sys, pathlib; make_environment.compile_module(*map(pathlib.Path, sys.argv[1:]))"
    use_it = (
        "import relm_text_passes as it; from relm.corpus.compiled import tidy_spaces; print(tidy_spaces is None, it.__file__)"
    )
    source = tmp_path / "text_passes.c"
    for change, unused in (("", False), ("/* changed */", True)):
        source.write_text((checkout / "src/relm/corpus/text_passes.c").read_text() + change)
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{checkout / 'envs'}"}
        subprocess.run([sys.executable, "-c", compile_it, str(source), str(tmp_path)], env=environment, check=True)
        if not list(tmp_path.glob("*.so")):
            pytest.skip("there is no C compiler on this machine")
        done = subprocess.run([sys.executable, "-c", use_it], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"{unused} {tmp_path / 'relm_text_passes.abi3.so'}\n"
