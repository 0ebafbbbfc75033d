"""Podman of a user who is not root: what `--userns keep-id` on the line is for."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import install, podman_settings, remove
from image_project import ImageProject

from relm.artifact import sha256_of
from relm.containers.lock import find_image
from relm.containers.run_line import ContainerRun, run_line
from relm.recipes.project import Project

pytestmark = [pytest.mark.containers, pytest.mark.full, pytest.mark.timeout(1500)]
USER = 1234
BECOME = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
# The user's name and range of ids are there for what this starts alone: the machine's own files stay as they are.
INSIDE = """
set -e
for name in passwd group subuid subgid; do mount --bind "$0/etc/$name" "/etc/$name"; done
cd "$0"
exec "$@"
"""
AsUser = Callable[..., "subprocess.CompletedProcess[str]"]


@contextlib.contextmanager
def podman_without_root(folder: Path) -> Iterator[AsUser]:
    """Yield a function that runs a command as an ordinary user with a separate podman, whose files lie below a folder.

    The folder is removed afterwards."""
    install("podman", "runc", "catatonit", "uidmap")
    tried = subprocess.run([*BECOME, "unshare", "--user", "--map-root-user", "true"], capture_output=True, text=True)
    if tried.returncode:
        folder.rmdir()
        pytest.skip(f"an ordinary user gets no user namespace from this machine's kernel: {tried.stderr.strip()}")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": f"{folder}/runtime"}
    environment |= podman_settings(folder)
    (folder / "etc").mkdir()
    (folder / "runtime").mkdir(mode=0o700)
    for name, line in {"passwd": f"ordinary:x:{USER}:{USER}::{folder}:/bin/sh\n", "group": f"ordinary:x:{USER}:\n"}.items():
        (folder / "etc" / name).write_text(Path("/etc", name).read_text() + line)
    for name in ("subuid", "subgid"):
        (folder / "etc" / name).write_text("ordinary:100000:65536\n")

    def as_user(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", INSIDE, str(folder), *BECOME, *words]
        return subprocess.run(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900
        )

    give(folder)
    try:
        yield as_user
    finally:
        for number in folder.glob("runtime/libpod/tmp/pause.pid"):  # it keeps the user's namespaces
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number.read_text()), signal.SIGKILL)
        remove(folder)


def give(folder: Path) -> None:
    """Have the user own a folder and all that is in it."""
    subprocess.run(["chown", "--recursive", f"{USER}:{USER}", folder], check=True)


def test_a_user_without_root_trains_to_the_same_bytes_and_owns_them(in_podman: ImageProject) -> None:
    image = in_podman.built("cpu").id
    published = sha256_of(in_podman.folder / "results/smoke/quickstart/model.safetensors")
    folder = Path(tempfile.mkdtemp(prefix="relm-rootless-", dir="/var/tmp"))
    with podman_without_root(folder) as as_user:
        archive, checkout = folder / "cpu.tar", folder / "checkout"
        in_podman.engine.run("save", "--format", "docker-archive", "--output", str(archive), image)
        shutil.copytree(in_podman.folder, checkout, ignore=shutil.ignore_patterns(".snakemake", "results", "runs"))
        give(checkout)
        archive.chmod(0o644)
        loaded = as_user("podman", "load", "--input", str(archive))
        assert loaded.returncode == 0, loaded.stdout
        archive.unlink()

        plan = Project(checkout).plan("smoke/quickstart")
        (phase,) = plan.phases
        files = ["--manifest", str(plan.manifest(phase)), "--tokenizer", str(plan.tokenizer)]
        run = ContainerRun(
            image=find_image("cpu", checkout),
            reference=image,
            command=["pretrain", plan.name, "--phase", phase, *files, "--output", "work/run/model/model.safetensors"],
            writable=[checkout],
            working_folder=checkout,
            user=(USER, USER),
            rootless=True,
        )
        line = run_line("podman", run, {"OMP_NUM_THREADS": "1"})
        done = as_user(*line)
        assert done.returncode == 0, f"{loaded.stdout}\n{done.stdout}"
        model = checkout / "work/run/model/model.safetensors"
        assert sha256_of(model) == published
        assert (model.stat().st_uid, model.stat().st_gid) == (USER, USER)
        without = as_user(*(word for word in line if word not in ("--userns", "keep-id")))
        assert without.returncode != 0, "without it the user inside is another one, and the folder not its own"
