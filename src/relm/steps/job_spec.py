"""Job specs: the identity document of what a step makes, which the graph decides and passes to the step as JSON.

Its digest is the key in the product's path. Everything that changes the product is in it; files, workers and the device are
ordinary options of the command, and change no key.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relm.errors import RelmError
from relm.steps.contract import Arguments, argument

JOB = argument(
    "--job", metavar="JSON", help="the identity of what is made, as the graph passes it; `relm command NAME STEP` prints one"
)


def document_of(arguments: Arguments, short_form: Sequence[str], build: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the document of a command: that of `--job`, or what is built from the flags of its short form.

    Args:
        arguments: of the command.
        short_form: the flags that `--job` takes the place of; each is None or False where it is not given.
        build: makes the document of the flags.

    Raises:
        RelmError: both are given, or the document is invalid.
    """
    if arguments.job is None:
        return build()
    given = [name for name in short_form if getattr(arguments, name) not in (None, False)]
    if given:
        raise RelmError(f"--job: has all that decides what is made; leave --{given[0].replace('_', '-')} out")
    return read_job(arguments.job)


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
