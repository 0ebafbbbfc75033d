"""Real engines for the tests, from Debian's packages: ended by their process number, with all files below one folder, which is
removed.

Debian's podman does not run as installed on a virtual machine without all rights: it gets a runtime, limits and control groups
that do. Nothing is pulled unnoticed: Docker Hub is blocked.
"""

import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relm.containers.context import cache_folder

STAND_IN = "localhost/standin/python:3.11"
PACKAGES = {"podman": ("podman", "runc", "catatonit"), "docker": ("docker.io", "tini")}
PROGRAMS = {"podman": "/usr/bin/podman", "docker": "/usr/sbin/dockerd"}


@dataclass(frozen=True)
class Engine:
    """A running engine, with the variables that its commands need."""

    name: str
    folder: Path
    environment: dict[str, str]

    def run(self, *words: str, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
        """Run one command of the engine; its two streams are together in `stdout`."""
        done = subprocess.run(
            [self.name, *words],
            env=os.environ | self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
            **options,  # type: ignore[call-overload]
        )
        assert done.returncode == 0 or not check, done.stdout
        return done


def install(*packages: str) -> None:
    """Install the Debian packages that are missing."""
    known = subprocess.run(["dpkg", "-s", *packages], capture_output=True)
    if known.returncode == 0:
        return
    assert os.getuid() == 0, f"these packages are missing, and only root can install them: {' '.join(packages)}"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", *words], env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()


@contextlib.contextmanager
def podman(folder: Path) -> Iterator[Engine]:
    """Yield podman with all its files below a folder, which is removed afterwards."""
    install(*PACKAGES["podman"])
    environment = {"RELM_ENGINE": "podman", **podman_settings(folder)}
    engine = Engine("podman", folder, environment)
    try:
        yield engine
    finally:
        engine.run("rm", "--all", "--force", "--time", "0", check=False)
        remove(folder)


def podman_settings(folder: Path) -> dict[str, str]:
    """Write podman's settings into the folder that is to hold all its files, and return the variables that name them."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    settings = {
        "containers.conf": f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=16384:16384"]\nnetns = "host"\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
        "storage.conf": f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n',
        "registries.conf": '[[registry]]\nprefix = "docker.io"\nlocation = "docker.io"\nblocked = true\n'
        '[[registry]]\nprefix = "127.0.0.1:5555"\nlocation = "127.0.0.1:5555"\ninsecure = true\n',
    }
    variables = ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF")
    for name, text in settings.items():
        (folder / name).write_text(text)
    return {"TMPDIR": str(folder)} | {name: str(folder / file) for name, file in zip(variables, settings, strict=True)}


@contextlib.contextmanager
def docker(folder: Path) -> Iterator[Engine]:
    """Yield Docker's daemon, a child of this process, with all its files below a folder, which is removed afterwards."""
    install(*PACKAGES["docker"])
    (folder / "bin").mkdir()
    (folder / "bin" / "docker").symlink_to("/usr/bin/docker")  # another client may come earlier in PATH
    environment = {
        "RELM_ENGINE": "docker",
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        "DOCKER_CONFIG": str(folder / "client"),
        "DOCKER_BUILDKIT": "0",
        "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}",
    }
    command = [
        *("/usr/sbin/dockerd", "--host", environment["DOCKER_HOST"], "--data-root", f"{folder}/data"),
        *("--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/dockerd.pid", "--storage-driver=overlay2"),
        *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"),
    ]
    with open(folder / "dockerd.log", "wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    engine = Engine("docker", folder, environment)
    try:
        for _ in range(300):
            if engine.run("version", check=False).returncode == 0:
                break
            assert daemon.poll() is None, (folder / "dockerd.log").read_text()[-2000:]
            time.sleep(0.2)
        yield engine
    finally:
        daemon.terminate()
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        remove(folder)


def remove(folder: Path) -> None:
    """Remove an engine's folder, after ending what runs in its containers and builds and unmounting what is mounted there."""
    for _ in range(50):
        end_what_runs_in(folder)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    raise OSError(f"{folder}: could not be removed")


def end_what_runs_in(folder: Path) -> None:
    """Kill the processes whose root is a file system of the folder's: those of its containers. Others may see it as well."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is the kernel's
            mounts = (process / "mountinfo").read_text().splitlines()
            if any(mount.split()[4] == "/" and f"/{folder.name}/" in mount for mount in mounts):
                os.kill(int(process.name), signal.SIGKILL)


def base_archive() -> Path:
    """Return a Debian 12 with its Python 3.11 and pip, made from this machine's own package mirror: the stand-in for the
    official image, which comes from a registry. It is kept next to the cached environments for a day.

    Like that image it has Python as a library too, which torch_xla is linked to, and not all of Perl.
    """
    command = [
        *("mmdebstrap", "--quiet", "--variant=apt"),
        "--include=ca-certificates,python3,python3-venv,python3-pip,libpython3.11,libgomp1",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")),
        '--customize-hook=rm -r "$1"/usr/share/perl "$1"/usr/lib/x86_64-linux-gnu/perl',
        *("--dpkgopt=force-unsafe-io", "bookworm"),
    ]
    made_by = hashlib.sha256(" ".join(command).encode()).hexdigest()[:12]
    archive = cache_folder() / f"stand-in-{made_by}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.exists() and time.time() - archive.stat().st_mtime < 86400:
        return archive
    install("mmdebstrap")
    sources = next(path for path in map(Path, SOURCES) if path.exists())
    partial = archive.with_name(f"{archive.stem}.partial.tar")
    done = subprocess.run([*command, str(partial), str(sources)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    partial.replace(archive)
    return archive


SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")


def import_stand_in(engine: Engine) -> None:
    """Import the stand-in into an engine, with Python where the official image has it: below /usr/local."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    debian = "localhost/standin/debian:bookworm"
    engine.run("import", "--change", f"ENV PATH={path}", "--change", 'CMD ["bash"]', str(base_archive()), debian)
    context = engine.folder / "stand-in"
    context.mkdir()
    links = " && ".join(f"ln -s /usr/bin/python3.11 /usr/local/bin/{name}" for name in ("python", "python3", "python3.11"))
    (context / "Dockerfile").write_text(f"FROM {debian}\nRUN {links}\n")
    engine.run("build", "--network=none", "--tag", STAND_IN, str(context))


def real_apptainer(folder: Path) -> Path:
    """Unpack Apptainer from Debian sid's package, with sid's C library for only its two programs; return its program.

    Nothing is installed. It lies in a separate folder with its settings: root asks for no rights that these machines lack.
    """
    install("patchelf")
    (folder / "debs").mkdir(parents=True)
    fetch_from_sid(folder, "apptainer", "libc6", "libseccomp2", "libsqlite3-0")
    for package in (folder / "debs").glob("*.deb"):
        into = folder if package.name.startswith("apptainer_") else folder / "sid"
        subprocess.run(["dpkg-deb", "-x", package, into], check=True)
    library = folder / "sid/usr/lib/x86_64-linux-gnu"
    path = f"{library}:/usr/lib/x86_64-linux-gnu"
    for program in ("usr/bin/apptainer", "usr/lib/x86_64-linux-gnu/apptainer/bin/starter"):
        words = ["--set-interpreter", f"{library}/ld-linux-x86-64.so.2", "--force-rpath", "--set-rpath", path]
        subprocess.run(["patchelf", *words, folder / program], check=True)
    # A moved Apptainer looks for its files beside itself, and its starter takes usr/lib for the place it was installed to.
    (folder / "usr/etc").symlink_to("../etc")
    (folder / "usr/lib/etc").symlink_to("../../etc")
    for prefix in ("usr/var", "usr/lib/var"):
        (folder / prefix / "lib/apptainer/mnt/session").mkdir(parents=True)
    settings = folder / "etc/apptainer/apptainer.conf"
    lines = settings.read_text().splitlines()
    changed = {"root default capabilities": "no", "mount home": "no"}
    for number, line in enumerate(lines):
        for key, value in changed.items():
            lines[number] = f"{key} = {value}" if line.startswith(f"{key} =") else lines[number]
    settings.write_text("\n".join(lines) + "\n")
    return folder / "usr/bin/apptainer"


def fetch_from_sid(folder: Path, *packages: str) -> None:
    """Fetch packages of another suite, checked by apt's signatures, into `debs`; the machine's own lists stay."""
    state = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    sources = next(path for path in map(Path, SOURCES) if path.exists()).read_text()
    (mirror, *_) = re.findall(r"^(?:URIs:|deb(?: \[.*?\])?) +(\S+)", sources, re.MULTILINE)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (state / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} sid main\n")
    (state / "status").write_text("")
    given = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": state / "lists",
        "Dir::State::Status": state / "status",
        "Dir::Cache": state / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    options = [word for key, value in given.items() for word in ("-o", f"{key}={value}")]
    for words in (["update"], ["download", *packages]):
        done = subprocess.run(["apt-get", "-qq", *options, *words], cwd=folder / "debs", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
