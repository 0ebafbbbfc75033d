"""Job specs: the identity document of what a step makes, which the graph decides and passes to the step as JSON.

Its digest is the key in the product's path. Everything that changes the product is in it; files, workers and the device are
ordinary options of the command, and change no key.
"""

import json
from typing import Any

from relm.errors import RelmError
from relm.steps.contract import argument

JOB = argument(
    "--job", metavar="JSON", help="the identity of what is made, as the graph passes it; `relm command NAME STEP` prints one"
)


def read_job(text: str) -> dict[str, Any]:
    """Return the document of a `--job` option.

    Raises:
        RelmError: it is not the JSON of an object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RelmError(f"--job: not valid JSON ({error}); quote it for the shell, as in --job '{{...}}'") from None
    if not isinstance(document, dict):
        raise RelmError(f"--job: expected an object, found {text:.200}; `relm command NAME STEP` prints a whole command")
    return document
