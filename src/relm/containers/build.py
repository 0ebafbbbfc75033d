"""`relm images build`: build a role's image by the engine and record its id, which `find_reference` then returns."""

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
    """Build a role's image, record its id in the override file, and return a sentence that says so.

    Args:
        role: whose image.
        bases: build argument -> image, instead of the lock's bases.
        folder: the checkout.
        loggers: the image gets TensorBoard and Weights & Biases as well.

    Raises:
        RelmError: there is no engine, the context cannot be made, or the build fails; nothing is recorded then.
    """
    started = time.monotonic()
    choose_engine()  # before wheels are fetched
    with tempfile.TemporaryDirectory(prefix=f"relm-{role}-") as scratch:
        log.info("laying out the build context of %s", role)
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
    return f"built {role} in {seconds:.0f} s, {size / 1e9:.2f} GB, {identifier}; noted in {OVERRIDE}"


def build_context(context: Context, role: Role, folder: Path = Path()) -> tuple[str, int]:
    """Let the engine build a context; return the image's id, ``sha256:...``, and its size in bytes."""
    image = find_image(role, folder)
    arguments = context.arguments | context.bases
    network = DEVICES[role].builds_with_network
    return build_image(choose_engine(), context.folder, f"{image.image}:{image.tag}", arguments, network)
