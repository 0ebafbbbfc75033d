"""The Dockerfiles as they are in the repository: linted, pinned, for plain engines, and with the packages that steps need."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from relm.containers.context import read_entries, read_left_out, select_requirements
from relm.recipes.devices import list_image_roles

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=list_image_roles())
def dockerfile(request: pytest.FixtureRequest) -> Path:
    """Each of the four."""
    return CHECKOUT / "containers" / str(request.param) / "Dockerfile"


def find_unpinned(text: str) -> list[str]:
    """Return the images of a Dockerfile's stages that are neither a digest nor an earlier stage."""
    given = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.M))
    stages, found = set(), []
    for name, stage in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.M):
        whole = re.sub(r"\$\{(\w+)\}", lambda argument: given.get(argument[1], ""), name)
        if whole not in stages and not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", whole):
            found.append(name)
        stages.add(stage)
    return found


def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, dockerfile], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_stage_begins_with_a_digest(dockerfile: Path) -> None:
    assert find_unpinned(dockerfile.read_text()) == []


@pytest.mark.parametrize("name", ["python:3.11-slim-bookworm", "python@sha256:abc", "${OTHER}", "debian"])
def test_a_stage_without_a_digest_is_found(name: str) -> None:
    text = (CHECKOUT / "containers/cpu/Dockerfile").read_text()
    assert find_unpinned(text.replace("FROM ${BASE} AS torch", f"FROM {name} AS torch")) == [name]


def test_plain_engines_can_build_them(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    assert not re.search(r"^#\s*syntax\s*=|<<-?\s*[\"']?\w|--link|--mount", text, re.M | re.I)
    assert re.findall(r"^(USER|ENTRYPOINT|CMD) (.*)$", text, re.M) == [
        ("USER", "1000:1000"),
        ("ENTRYPOINT", '["relm"]'),
        ("CMD", '["--help"]'),
    ]


def test_all_packages_come_by_hash_and_none_over_the_network(dockerfile: Path) -> None:
    lines = dockerfile.read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in lines if " pip " in line and " install " in line]
    assert len(installs) == 3
    assert all("--no-index" in line and "--no-deps" in line for line in installs)
    assert all("--require-hashes" in line or "/build/relm" in line for line in installs)
    assert bool([line for line in lines if "apt-get" in line]) == (dockerfile.parent.name == "cuda")


def test_compilers_are_where_torch_compile_needs_them_alone(dockerfile: Path) -> None:
    assert bool(re.search(r"\bg\+\+|\bgcc\b|build-essential", dockerfile.read_text())) == (dockerfile.parent.name == "cuda")


def test_an_image_lacks_only_what_no_step_imports() -> None:
    """The packages left out are those that Snakemake and the docker package alone need; with loggers, not what these need."""
    text = re.sub(r"#.*|[<>=].*", "", (CHECKOUT / "envs/cpu.in").read_text())
    roots = {name.strip() for name in text.splitlines() if name.strip()} - {"snakemake", "docker"}
    lock, loggers = CHECKOUT / "envs/cpu.txt", {"tensorboard", "wandb"}
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
    text = (CHECKOUT / "containers/ipu/Dockerfile").read_text().replace("\\\n", " ")
    made = str(re.search(r"^RUN (mkdir /opt/ipu .*)$", text, re.M)[1]).replace("/opt/ipu", str(tmp_path / "ipu"))
    sdk = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": "/opt/poplar/python:/opt/popart python"}
    subprocess.run(["sh", "-c", made], env=sdk, check=True)
    shown = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"
    worker = [tmp_path / "ipu" / "python3", "-c", shown, "two words"]
    done = subprocess.run(worker, env={"PATH": "/usr/bin"}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.prefix}|/opt/poplar/python:/opt/popart python|two words\n"
    assert "PYTHONPATH= RELM_IPU_PYTHON=/opt/ipu/python3" in text
    assert text.index("mkdir /opt/ipu") < text.index("PATH=/opt/relm/bin:$PATH")  # afterwards python3 is relm's


@pytest.mark.parametrize("moment", ["20261120T000000Z", ""])
def test_debians_packages_come_from_a_snapshot_unless_none_is_wanted(moment: str, tmp_path: Path) -> None:
    """The instruction is carried out by a shell, on another folder."""
    text = (CHECKOUT / "containers/cuda/Dockerfile").read_text().replace("\\\n", " ")
    assert re.search(r"^ARG SNAPSHOT=\d{8}T\d{6}Z$", text, re.M)
    made = str(re.search(r"^RUN (if .* fi)$", text, re.M)[1]).replace("/etc", str(tmp_path))
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "apt/sources.list.d/debian.sources").write_text("Types: deb\n")
    (tmp_path / "os-release").write_text('VERSION_CODENAME=bookworm\nNAME="Debian GNU/Linux"\n')
    subprocess.run(["sh", "-euc", made], env={"PATH": "/usr/bin:/bin", "SNAPSHOT": moment}, check=True)
    sources = tmp_path / "apt/sources.list"
    assert (tmp_path / "apt/sources.list.d/debian.sources").exists() == (not moment)
    assert sources.exists() == bool(moment)
    if moment:
        line = "deb [check-valid-until=no] http://snapshot.debian.org/archive/{}/20261120T000000Z bookworm{} main"
        suites = [("debian", ""), ("debian", "-updates"), ("debian-security", "-security")]
        assert sources.read_text().splitlines() == [line.format(*suite) for suite in suites]


def test_what_apt_writes_with_the_time_in_it_is_removed() -> None:
    (line,) = re.findall(r"^RUN apt-get .*$", (CHECKOUT / "containers/cuda/Dockerfile").read_text().replace("\\\n", " "), re.M)
    removed = line.partition("rm -rf ")[2].split()
    assert {"/var/lib/apt/lists/*", "/var/log/apt", "/var/log/dpkg.log", "/var/cache/ldconfig/aux-cache"} <= set(removed)


def test_nothing_compiled_depends_on_the_time_of_its_source(dockerfile: Path) -> None:
    lines = dockerfile.read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in lines if " pip " in line and " install " in line]
    assert all("--no-compile" in line for line in installs)
    compiled = [line for line in lines if "compileall" in line]
    assert len(compiled) == 2
    assert all(
        "PYTHONHASHSEED=0 /opt/relm/bin/python -m compileall -q --invalidation-mode unchecked-hash" in line for line in compiled
    )
    assert all("python -B" in line for line in lines if "import " in line and line.startswith("RUN"))


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
