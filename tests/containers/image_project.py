"""A copy of the checkout's recipes and rules in a separate folder, owned by an ordinary user, whose steps run in images."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from engines import Engine

from relm.containers.lock import Built, Role, read_override, record_built

CHECKOUT = Path(__file__).resolve().parents[2]
COPIED = ("containers", "envs", "recipes", "profiles", "src", "Snakefile", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class ImageProject:
    """The folder, and the commands that a person gives in it."""

    folder: Path
    engine: Engine
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Return the engine's variables, with the shim for Apptainer first in PATH."""
        search = [str(CHECKOUT / "containers" / "bin"), str(Path(sys.executable).parent)]
        path = self.engine.environment.get("PATH", os.environ["PATH"])
        given = {"PATH": os.pathsep.join([*search, path]), "RELM_SHOW_COMMANDS": "1", "OMP_NUM_THREADS": "1"}
        kept = {name: value for name, value in os.environ.items() if name != "RELM_WORK"}
        return kept | self.engine.environment | given | self.variables

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run any command in the folder; its two streams are together in `stdout`."""
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
        )

    def snakemake(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake in the folder, one job after the other."""
        return self.command("snakemake", *words, "--cores", "1", "--nocolor")

    def built(self, role: Role) -> Built:
        """Return the image that was built here for a role."""
        return read_override(self.folder).images[role]


def make_image_project(folder: Path, engine: Engine) -> ImageProject:
    """Make a project, whose mirror has the file that the checkout has downloaded already."""
    folder.chmod(0o755)  # pytest's folders are closed to the other users that steps run as
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "lock.local.yaml"))
        else:
            shutil.copyfile(source, folder / name)
    (folder / "mirror").mkdir()
    project = ImageProject(folder, engine, {"RELM_MIRROR": str(folder / "mirror")})
    fetch = "work/downloads/data/enwiki_206_pages/a53f4648dec4/enwiki-206-pages.xml.bz2"
    fetched = subprocess.run(
        [str(Path(sys.executable).parent / "snakemake"), fetch, "--cores", "1"], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    shutil.copyfile(CHECKOUT / fetch, folder / "mirror" / Path(fetch).name)
    return project


def build(project: ImageProject, role: Role, bases: dict[str, str]) -> None:
    """Build one role's image on stand-ins by `relm images build`."""
    words = [f"--base={name}={image}" for name, image in bases.items()]
    done = project.command(sys.executable, "-m", "relm", "images", "build", role, *words)
    assert done.returncode == 0, done.stdout[-4000:]


@dataclass(frozen=True)
class ApptainerImage:
    """Apptainer's program, and an image that it runs."""

    program: Path
    path: Path
    built: Built
    """The image's entry in the override, with its path."""

    @property
    def search_path(self) -> str:
        """Return PATH with the program first."""
        return f"{self.program.parent}{os.pathsep}{os.environ['PATH']}"

    def record(self, folder: Path) -> None:
        """Record the image in a project's override."""
        record_built("cpu", self.built, folder)


def make_sandbox(program: Path, project: ImageProject, folder: Path) -> ApptainerImage:
    """Make a folder that Apptainer runs of a project's cpu image."""
    archive, sandbox = folder / "cpu.tar", folder / "cpu"
    project.engine.run("save", "--format", "docker-archive", "--output", str(archive), project.built("cpu").id)
    scratch = {"APPTAINER_TMPDIR": str(folder), "APPTAINER_CACHEDIR": str(folder / "cache")}
    command = [program, "build", "--sandbox", sandbox, f"docker-archive:{archive}"]
    made = subprocess.run(command, env=os.environ | scratch, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    archive.unlink()
    return ApptainerImage(program, sandbox, project.built("cpu").model_copy(update={"apptainer": sandbox}))
