"""`relm images run`: a step in a role's image through the engine's socket, as if it ran here."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from relm.containers.container_options import container_options
from relm.containers.engine_socket import in_words
from relm.containers.lock import Role, image_of, reference
from relm.containers.placement import placement
from relm.containers.run_line import Engine, Run, devices_here
from relm.errors import RelmError
from relm.recipes.identity import work_folder
from relm.recipes.plan import Project


class StepFailed(RelmError):
    """The step inside ended with a status of its own, after it said why."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


def run_of(role: Role, words: Sequence[str], project: Project) -> Run:
    """A step in the image of a role: the checkout, the work folder and what the step reads beside, and nothing else.

    Raises:
        RelmError: the role has no image yet, or one that is not verified.
    """
    image, placed = image_of(role), placement(words, project)
    checkout, work = Path.cwd(), work_folder().resolve()
    return Run(
        image=image,
        reference=reference(role),
        command=list(words),
        writable=[checkout, *([] if work.is_relative_to(checkout) else [work])],
        read=placed.reads,
        working_folder=checkout,
        network=placed.network,
        devices=devices_here(image),
    )


def engine_of(client: Any) -> Engine:
    """Which of the two answers at a socket."""
    parts = client.version().get("Components", [])
    return "podman" if any("podman" in str(part.get("Name", "")).lower() for part in parts) else "docker"


def run_in_image(client: Any, run: Run) -> str:
    """Run a container to its end; what it says appears here, and what stops this process stops it. A sentence of it.

    Raises:
        StepFailed: it ended with another status than 0.
        RelmError: the engine does not have the image, refuses an option, or goes away.
    """
    with in_words(f"running {run.reference}"):
        container = client.containers.create(**container_options(engine_of(client), run, os.environ))
        try:
            with _forwarding_signals(container):
                output = container.attach(stdout=True, stderr=True, stream=True, logs=True, demux=True)
                container.start()
                _show(output)
                status = int(container.wait()["StatusCode"])
        finally:
            container.remove(force=True)
    if status:
        raise StepFailed(f"{run.command[0]} ended with {status} in the image {run.reference}", status)
    return f"{run.command[0]} ran in the image {run.reference}"


def _show(output: Iterator[tuple[bytes | None, bytes | None]]) -> None:
    """Both streams as they come."""
    for out, err in output:
        for stream, said in ((sys.stdout, out), (sys.stderr, err)):
            if said:
                stream.buffer.write(said)
                stream.flush()


@contextlib.contextmanager
def _forwarding_signals(container: Any) -> Iterator[None]:
    """TERM and INT go to the step, which saves and ends; this process waits for it."""

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # it has ended already
            container.kill(signal=signal.Signals(number).name)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
