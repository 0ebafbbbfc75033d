"""`relm images build`: build a role's image through the engine's API and record its id, which `reference` then returns."""

import datetime
import logging
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relm.containers.bill_of_materials import describe_image, read_debian_packages, write_bill
from relm.containers.context import Context, lay_out
from relm.containers.engine import connect, name_engine, report_engine_errors
from relm.containers.lock import OVERRIDE, Built, Image, Role, find_image, record_built
from relm.containers.run_line import Engine
from relm.errors import RelmError
from relm.recipes.devices import DEVICES

log = logging.getLogger(__name__)
TIMEOUT = 6 * 3600.0  # seconds between two messages of the engine; installing torch prints nothing for minutes
LAST_LINES = 15
# The time of all files of our layers, and of the image: the same content gives the same bytes, in any build. Podman sets it,
# Docker's builder without BuildKit does not. 1980 is the first year that a zip archive can state.
TIMESTAMP = 315532800
NO_NETWORK: dict[Engine, str] = {"docker": "none", "podman": "NetworkDisabled"}  # podman 4 passes over "none"
# As Docker and podman print it: "Step 3/25 : COPY ..." and "[1/4] STEP 3/9: COPY ...".
_STEP = re.compile(
    r"(?:\[(?P<stage>\d+)/(?P<stages>\d+)\] )?step (?P<step>\d+)/(?P<steps>\d+) ?: (?P<instruction>.*)", re.IGNORECASE
)


def build(
    role: Role,
    bases: dict[str, str] | None,
    folder: Path = Path(),
    loggers: bool = False,
    snapshot: str | None = None,
) -> str:
    """Build a role's image, record its id in the override file, and return a sentence that says so.

    Args:
        role: whose image.
        bases: build argument -> image, instead of the lock's bases.
        folder: the checkout.
        loggers: the image gets TensorBoard and Weights & Biases as well.
        snapshot: the moment of Debian's packages, or "none": those of the base's own sources; None: the Dockerfile's.

    Raises:
        RelmError: there is no engine, the context cannot be made, or the build fails; nothing is recorded then.
    """
    image, started = find_image(role, folder), time.monotonic()
    with connect() as client, tempfile.TemporaryDirectory(prefix=f"relm-{role}-") as scratch:
        log.info("laying out the build context of %s", role)
        context = lay_out(role, Path(scratch) / "context", folder, bases, loggers, snapshot)
        identifier, size = build_context(client, context, image, role)
        debian = read_debian_packages(client, identifier)
        bill = describe_image(image, identifier, context, checkout=folder, debian=debian)
    bill_file = Path("containers") / f"{role}.cdx.json"
    write_bill(bill, folder / bill_file)
    commit = context.arguments["COMMIT"]
    built = Built(
        id=identifier,
        bases=context.bases,
        built=datetime.datetime.now(datetime.UTC).date(),
        commit=None if commit == "unknown" else commit,
        loggers=loggers,
    )
    record_built(role, built, folder)
    seconds = time.monotonic() - started
    made = f"built {image.image}:{image.tag} in {seconds:.0f} s, {size / 1e9:.2f} GB, {identifier}"
    return f"{made}; noted in {OVERRIDE}, its bill of materials in {bill_file}"


def build_context(client: Any, context: Context, image: Image, role: Role) -> tuple[str, int]:
    """Let the engine build a context; return the image's id, ``sha256:...``, and its size in bytes."""
    tag = f"{image.image}:{image.tag}"
    client.api.params = {"timestamp": str(TIMESTAMP)}  # of each request: the package has no argument for it
    with report_engine_errors(f"building {tag}"):
        answers = client.api.build(
            path=str(context.folder),
            tag=tag,
            buildargs=context.arguments | context.bases,
            network_mode=None if DEVICES[role].builds_with_network else NO_NETWORK[name_engine(client)],
            rm=True,
            forcerm=True,
            decode=True,
            timeout=TIMEOUT,
        )
        log_steps(answers, role)
        built = client.images.get(tag)
    return str(built.id), int(built.attrs.get("Size", 0))


def log_steps(answers: Iterable[Mapping[str, Any]], role: str) -> None:
    """Log each instruction of a Dockerfile as the engine begins it, with the seconds until then."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    started = time.monotonic()
    for line in _read_lines(answers, last):
        if found := _STEP.match(line):
            log.info("%s: %6.1f s  %s", role, time.monotonic() - started, _format_step(found))
            last.clear()


def _read_lines(answers: Iterable[Mapping[str, Any]], last: deque[str]) -> Iterator[str]:
    """Yield an engine's output by whole lines, and keep the last ones."""
    rest = ""
    for answer in answers:
        if "error" in answer:
            output = "\n  ".join([*last, rest.strip(), str(answer["error"]).strip()]).replace("\n  \n", "\n")
            raise RelmError(f"the build failed; the engine's last words:\n  {output}")
        *lines, rest = (rest + str(answer.get("stream", ""))).split("\n")
        for line in lines:
            if line.strip():
                last.append(line.rstrip())
                yield line


def _format_step(found: re.Match[str]) -> str:
    stage = f"{found['stage']}/{found['stages']}: " if found["stage"] else ""
    instruction = found["instruction"]
    shortened = instruction if len(instruction) <= 80 else f"{instruction[:79]}…"
    return f"{stage}{found['step']}/{found['steps']} {shortened}"
