"""Job specs: the identity document of a step's product, which the graph passes to the step as JSON.

Its digest is the key in the product's path. It contains everything that changes the product; files, workers and the device are
ordinary options of the command, and do not change the key.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.steps.contract import Arguments, argument

JOB = argument(
    "--job", metavar="JSON", help="identity of the product, as the graph passes it; `relm STEP NAME --print` shows one"
)


def document_of(a: Arguments, keys: Iterable[str], build: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the document of a command: that of `--job`, or the one built from the options of `keys`, which it replaces."""
    if a.job is None:
        return build()
    if given := [key for key in keys if getattr(a, key, None) not in (None, False)]:
        raise RelmError(f"--job: describes the product completely; remove --{given[0].replace('_', '-')}")
    return read_job(a.job)


def read_job(text: str) -> dict[str, Any]:
    """Return the document of a `--job` option."""
    try:
        document = json.loads(text)
        canonical_json(document).encode()  # as for its digest: no NaN, and only valid text
    except (ValueError, RecursionError) as error:
        raise RelmError(f"--job: not valid JSON ({error}); quote it for the shell, as in --job '{{...}}'") from None
    if not isinstance(document, dict):
        raise RelmError(f"--job: expected an object, found {text:.200}; `relm STEP NAME --print` prints a whole command")
    return document
