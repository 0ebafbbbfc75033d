"""`relm images build`: build a role's image with the engine, and record its id for `find_reference`."""

import datetime
import logging
import tempfile
import time
from pathlib import Path

from relm.containers.context import Context, lay_out
from relm.containers.engine import build_image, choose_engine
from relm.containers.lock import OVERRIDE, Built, Role, find_image, record_built
from relm.recipes.devices import DEVICES

log = logging.getLogger(__name__)


def build(role: Role, bases: dict[str, str] | None, folder: Path = Path(), loggers: bool = False) -> str:
    """Build a role's image, record its id in the override file, and return a sentence on it.

    Args:
        bases: build argument -> image, instead of the lock's bases.
        folder: the checkout.
        loggers: add what `run.loggers` may name.
    """
    started = time.monotonic()
    choose_engine()  # fail before wheels are fetched
    with tempfile.TemporaryDirectory(prefix=f"relm-{role}-") as scratch:
        log.info("preparing the build context of %s", role)
        context = lay_out(role, Path(scratch) / "context", folder, bases, loggers)
        identifier, size = build_context(context, role, folder)
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
    return f"built {role} in {seconds:.0f} s, {size / 1e9:.2f} GB, {identifier}; recorded in {OVERRIDE}"


def build_context(context: Context, role: Role, folder: Path = Path()) -> tuple[str, int]:
    """Build a context with the engine; return the image's id, ``sha256:...``, and its size in bytes."""
    image = find_image(role, folder)
    arguments = context.arguments | context.bases
    network = DEVICES[role].builds_with_network
    return build_image(choose_engine(), context.folder, f"{image.image}:{image.tag}", arguments, network)
