"""`relm images build`: a role's image by the engine's socket, and its id where `reference` finds it."""

import datetime
import logging
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relm.containers.context import lay_out
from relm.containers.engine_socket import in_words
from relm.containers.lock import OVERRIDE, Built, Image, Role, image_of, record_built
from relm.errors import RelmError

log = logging.getLogger(__name__)
SECONDS = 6 * 3600.0  # between two words of the engine; installing torch says nothing for minutes
LAST_LINES = 15
# As Docker and podman say it: "Step 3/25 : COPY ..." and "[1/4] STEP 3/9: COPY ...".
_STAGE = re.compile(
    r"(?:\[(?P<stage>\d+)/(?P<stages>\d+)\] )?step (?P<step>\d+)/(?P<steps>\d+) ?: (?P<words>.*)", re.IGNORECASE
)


def build(client: Any, role: Role, bases: dict[str, str] | None, folder: Path = Path()) -> str:
    """Build a role's image and note its id in the override file.

    Args:
        client: of the engine.
        bases: build argument -> image, instead of the lock's bases.

    Raises:
        RelmError: the context cannot be made, the build fails, or the engine goes away; nothing is noted then.
    """
    image, started = image_of(role, folder), time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"relm-{role}-") as place:
        log.info("laying out what the image of %s is built from", role)
        context = lay_out(role, Path(place) / "context", folder, bases)
        given = {name: value for name, value in context.arguments.items() if name in image.bases}
        identifier = run_build(client, context.folder, context.arguments, image, role)
    commit = context.arguments["COMMIT"]
    today = datetime.datetime.now(datetime.UTC).date()
    record_built(role, Built(id=identifier, bases=given, built=today, commit=None if commit == "unknown" else commit), folder)
    size = client.images.get(identifier).attrs.get("Size", 0)
    seconds = time.monotonic() - started
    return f"built {image.image}:{image.tag} in {seconds:.0f} s, {size / 1e9:.2f} GB, {identifier}; noted in {OVERRIDE}"


def run_build(client: Any, context: Path, arguments: Mapping[str, str], image: Image, role: Role) -> str:
    """Let the engine build a folder; the image's id, ``sha256:...``."""
    tag = f"{image.image}:{image.tag}"
    with in_words(f"building {tag}"):
        answers = client.api.build(
            path=str(context),
            tag=tag,
            buildargs=dict(arguments),
            rm=True,
            forcerm=True,
            decode=True,
            timeout=SECONDS,
        )
        follow(answers, role)
        return str(client.images.get(tag).id)


def follow(answers: Iterable[Mapping[str, Any]], role: str) -> None:
    """Say what an engine begins to do, stage by stage, and after how many seconds.

    Raises:
        RelmError: the build failed; has the last lines that it said.
    """
    last: deque[str] = deque(maxlen=LAST_LINES)
    started = time.monotonic()
    for line in _lines(answers, last):
        if found := _STAGE.match(line):
            log.info("%s: %6.1f s  %s", role, time.monotonic() - started, _stage_in_words(found))
            last.clear()


def _lines(answers: Iterable[Mapping[str, Any]], last: deque[str]) -> Iterator[str]:
    """What the engine says, by whole lines, of which the last ones are kept."""
    rest = ""
    for answer in answers:
        if "error" in answer:
            said = "\n  ".join([*last, rest.strip(), str(answer["error"]).strip()]).replace("\n  \n", "\n")
            raise RelmError(f"the build failed; the engine's last words:\n  {said}")
        *lines, rest = (rest + str(answer.get("stream", ""))).split("\n")
        for line in lines:
            if line.strip():
                last.append(line.rstrip())
                yield line


def _stage_in_words(found: re.Match[str]) -> str:
    of = f"{found['stage']}/{found['stages']}: " if found["stage"] else ""
    words = found["words"] if len(found["words"]) <= 80 else f"{found['words'][:79]}…"
    return f"{of}{found['step']}/{found['steps']} {words}"
