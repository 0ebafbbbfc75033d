"""The Dockerfile as it is in the repository: linted, pinned, for plain engines, and with the packages that steps need."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from relm.containers.context import read_entries, read_left_out, select_requirements
from relm.containers.lock import read_lock
from relm.devices.ipu import worker_process
from relm.recipes.devices import list_image_roles

CHECKOUT = Path(__file__).resolve().parents[2]


DOCKERFILE = CHECKOUT / "containers" / "Dockerfile"


def read_instructions() -> list[str]:
    """Return the instructions of the Dockerfile, one a line."""
    lines = DOCKERFILE.read_text().replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def find_command(beginning: str, folder: Path) -> str:
    """Return the shell command of the one RUN that begins so, with `/etc` and `/opt` in another folder."""
    (found,) = [line for line in read_instructions() if line.startswith(f"RUN {beginning}")]
    return found.removeprefix("RUN ").replace("/etc", str(folder)).replace("/opt", str(folder))


def test_hadolint_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_stage_begins_with_a_base_of_the_lock_or_a_stage_before() -> None:
    found = [line.split()[1:] for line in read_instructions() if line.startswith("FROM ")]
    stages = [words[-1] for words in found]
    assert all(words[0] in ("${BASE}", "${PYTHON}", *stages[:number]) for number, words in enumerate(found))
    assert {name for image in read_lock(CHECKOUT).images.values() for name in image.bases} == {"BASE", "PYTHON"}
    assert "ARG PYTHON=${BASE}" in read_instructions()


def test_plain_engines_can_build_it() -> None:
    text = DOCKERFILE.read_text()
    assert not re.search(r"^#\s*syntax\s*=|<<-?\s*[\"']?\w|--link|--mount", text, re.M | re.I)
    assert re.findall(r"^(USER|ENTRYPOINT|CMD) (.*)$", text, re.M) == [
        ("USER", "1000:1000"),
        ("ENTRYPOINT", '["relm"]'),
        ("CMD", '["--help"]'),
    ]


def test_all_packages_come_by_hash_and_over_the_network_only_the_compilers_of_cuda() -> None:
    installs = [line for line in read_instructions() if " pip " in line and " install " in line]
    assert len(installs) == 3
    assert all("--no-index" in line and "--no-deps" in line and "--no-compile" in line for line in installs)
    assert all("--require-hashes" in line or "/build/relm" in line for line in installs)
    loaded = [line for line in read_instructions() if re.search(r"apt-get|curl|wget", line)]
    assert [line.partition(";")[0] for line in loaded] == ['RUN if [ "${ROLE}" = cuda ]']


@pytest.mark.parametrize("role", list_image_roles())
def test_an_argument_says_which_role_is_built(role: str) -> None:
    """The conditions of the instructions are evaluated by a shell, for each role."""
    asked = re.findall(r'if (\[ "\$\{ROLE\}" !?= \w+ \])', "\n".join(read_instructions()))
    true = {each for each in asked if not subprocess.run(["sh", "-c", each], env={"ROLE": role}).returncode}
    expected = {'[ "${ROLE}" != cuda ]'} if role != "cuda" else set()
    assert true == expected | ({f'[ "${{ROLE}}" = {role} ]'} if role != "cpu" else set())


def test_an_image_lacks_only_what_no_step_imports() -> None:
    """The packages left out are those that only Snakemake needs; with loggers, not what these need."""
    text = re.sub(r"#.*|[<>=].*", "", (CHECKOUT / "envs/cpu.in").read_text())
    roots = {name.strip() for name in text.splitlines() if name.strip()} - {"snakemake"}
    lock, loggers = CHECKOUT / "envs/cpu.txt", {"tensorboard", "wandb", "trackio"}
    locked = {name for name, _ in read_entries(lock)}
    assert read_left_out(lock) == locked - list_required(roots)
    assert read_left_out(lock, loggers=True) == locked - list_required(roots | loggers)


def test_the_tpu_image_lacks_parts_of_cuda_and_nothing_else() -> None:
    lock = CHECKOUT / "envs/torch-tpu.txt"
    lacks = read_left_out(lock)
    assert lacks < {name for name, _ in read_entries(lock)}
    assert all(name == "triton" or name.startswith("nvidia-") for name in lacks)


def test_what_one_lock_leaves_out_another_keeps() -> None:
    """Only Snakemake needs attrs among the packages of all, but so does what reads gs:// on a TPU."""
    assert "attrs" in read_left_out(CHECKOUT / "envs/cpu.txt")
    tpu, cuda = CHECKOUT / "envs/torch-tpu.txt", CHECKOUT / "envs/torch-cuda.txt"
    assert "\nattrs==" in select_requirements(tpu, read_left_out(tpu))
    assert "\ntriton==" in select_requirements(cuda, read_left_out(cuda))


def test_the_ipu_images_worker_gets_graphcores_python_with_the_modules_of_its_sdk(tmp_path: Path) -> None:
    """The instruction is carried out by a shell, in another folder."""
    made = find_command('if [ "${ROLE}" = ipu ]', tmp_path)
    sdk = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": "/opt/poplar/python:/opt/popart python"}
    subprocess.run(["sh", "-c", made], env={**sdk, "ROLE": "ipu"}, check=True)
    shown = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"
    worker = [tmp_path / "ipu" / "python3", "-c", shown, "two words"]
    done = subprocess.run(worker, env={"PATH": "/usr/bin"}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.prefix}|/opt/poplar/python:/opt/popart python|two words\n"
    text = "\n".join(read_instructions())
    assert "PYTHONPATH= " in text
    assert text.index("mkdir /opt/ipu") < text.index("PATH=/opt/relm/bin:$PATH")  # afterwards python3 is relm's
    assert worker_process._OF_SDK[0] == "/opt/ipu/python3"


@pytest.mark.parametrize(("role", "moment"), [("cuda", "20261120T000000Z"), ("cuda", ""), ("cpu", "20261120T000000Z")])
def test_debians_packages_come_from_a_snapshot_unless_none_is_wanted(role: str, moment: str, tmp_path: Path) -> None:
    """The instruction is carried out by a shell, on another folder."""
    assert re.search(r"^ARG SNAPSHOT=\d{8}T\d{6}Z$", DOCKERFILE.read_text(), re.M)
    made = find_command('if [ "${ROLE}" = cuda ] && ', tmp_path)
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "apt/sources.list.d/debian.sources").write_text("Types: deb\n")
    (tmp_path / "os-release").write_text('VERSION_CODENAME=bookworm\nNAME="Debian GNU/Linux"\n')
    subprocess.run(["sh", "-euc", made], env={"PATH": "/usr/bin:/bin", "ROLE": role, "SNAPSHOT": moment}, check=True)
    sources, replaced = tmp_path / "apt/sources.list", role == "cuda" and moment != ""
    assert (tmp_path / "apt/sources.list.d/debian.sources").exists() != replaced
    assert sources.exists() == replaced
    if replaced:
        line = "deb [check-valid-until=no] http://snapshot.debian.org/archive/{}/20261120T000000Z bookworm{} main"
        suites = [("debian", ""), ("debian", "-updates"), ("debian-security", "-security")]
        assert sources.read_text().splitlines() == [line.format(*suite) for suite in suites]


def list_required(roots: set[str]) -> set[str]:
    """Return packages and all that they require."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            required = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:  # for another system than this
            continue
        waiting += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_an_entry_is_left_out_whole_with_its_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "--extra-index-url https://x\na==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nB_c==2 \\\n    --hash=sha256:3\n"
    )
    assert select_requirements(lock, frozenset({"a"})) == "B_c==2 \\\n    --hash=sha256:3\n"
    assert [name for name, _ in read_entries(lock)] == ["a", "b-c"]
