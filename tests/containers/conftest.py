"""Engines, the cpu image built for real, and a project whose steps run in it."""

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from engines import STAND_IN, Engine, base_archive, docker, import_stand_in, podman, real_apptainer
from image_project import ApptainerImage, ImageProject, build, make_image_project, make_sandbox

from relm.containers.context import fetch_wheels, list_locks, read_left_out, select_requirements


@pytest.fixture(scope="session")
def an_end_by_term_cleans_up() -> None:
    """A stage that runs past its limit gets TERM: what was started must be ended all the same."""

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would end the cleaning up
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def started(engine: Callable[[Path], AbstractContextManager[Engine]], checkout: Path) -> Iterator[Engine]:
    """Yield an engine with the stand-in for the official base; wheels and base are fetched side by side."""
    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(fetch_wheels, lock, select_requirements(lock, read_left_out(lock)))
            for lock in list_locks("cpu", checkout)
        ]
        waiting.append(pool.submit(base_archive))
    for fetched in waiting:
        fetched.result()
    with engine(Path(tempfile.mkdtemp(prefix="relm-containers-", dir="/var/tmp"))) as running:
        import_stand_in(running)
        yield running


@pytest.fixture(scope="session")
def podman_engine(checkout: Path, an_end_by_term_cleans_up: None) -> Iterator[Engine]:
    """Podman."""
    yield from started(podman, checkout)


@pytest.fixture(scope="session")
def docker_engine(checkout: Path, an_end_by_term_cleans_up: None) -> Iterator[Engine]:
    """Docker."""
    yield from started(docker, checkout)


@pytest.fixture(scope="session")
def built_by_podman(podman_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> ImageProject:
    """A project whose cpu image podman has built, in which nothing has run."""
    return built_project(podman_engine, tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def in_podman(built_by_podman: ImageProject) -> ImageProject:
    """A finished smoke twin of the quickstart, each step of which ran in the cpu image by podman."""
    return finished(built_by_podman)


@pytest.fixture(scope="session")
def apptainer(built_by_podman: ImageProject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApptainerImage]:
    """Real Apptainer, and the cpu image as a folder that it runs: a single file of it takes minutes to make."""
    folder = tmp_path_factory.mktemp("apptainer")
    folder.chmod(0o755)
    try:
        program = real_apptainer(folder / "apptainer")
    except AssertionError as error:
        pytest.skip(f"no Apptainer here, and Debian's package is out of reach: {error}")
    yield make_sandbox(program, built_by_podman, folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def in_docker(docker_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> ImageProject:
    """The same by Docker."""
    return finished(built_project(docker_engine, tmp_path_factory.mktemp("docker")))


def built_project(engine: Engine, folder: Path) -> ImageProject:
    project = make_image_project(folder, engine)
    build(project, "cpu", {"BASE": STAND_IN})
    return project


def finished(project: ImageProject) -> ImageProject:
    done = project.snakemake("results/smoke/quickstart", "--sdm", "apptainer")
    assert done.returncode == 0, done.stdout
    return project
