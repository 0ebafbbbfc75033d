"""Job specs: the identity document of a step's product, which the graph passes to the step as JSON.

Its digest is the key in the product's path. It contains everything that changes the product; files, workers and the device are
ordinary options of the command, and do not change the key.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.recipes.section import Document, validate
from relm.steps.contract import Arguments, argument

JOB = argument(
    "--job", metavar="JSON", help="identity of the product, as the graph passes it; `relm STEP NAME --print` shows one"
)


def document_of(arguments: Arguments, short_form: Sequence[str], build: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the document of a command: that of `--job`, or the one built from the flags of its short form.

    Args:
        arguments: the command's arguments.
        short_form: the flags that `--job` replaces; each is None or False if it is not given.
        build: function that builds the document from the flags.
    """
    if arguments.job is None:
        return build()
    given = [name for name in short_form if getattr(arguments, name) not in (None, False)]
    if given:
        raise RelmError(f"--job: describes the product completely; leave --{given[0].replace('_', '-')} out")
    return read_job(arguments.job)


def read_job(text: str) -> dict[str, Any]:
    """Return the document of a `--job` option."""
    try:
        document = json.loads(text)
        canonical_json(document).encode()  # as for its digest: no NaN, and nothing that is no text
    except (ValueError, RecursionError) as error:
        raise RelmError(f"--job: not valid JSON ({error}); quote it for the shell, as in --job '{{...}}'") from None
    if not isinstance(document, dict):
        raise RelmError(f"--job: expected an object, found {text:.200}; `relm STEP NAME --print` prints a whole command")
    return document


def validate_options(kind: type[Document], options: Mapping[str, Any], source: Path, flags: Mapping[str, str]) -> Document:
    """Return the options of a command as the section of a recipe that they fill.

    Args:
        kind: the section.
        options: key -> value; the option of a key is `--` and its words.
        source: the command, for errors.
        flags: text of an error -> text with the option, where that is another.
    """
    try:
        return validate(kind, options, source)
    except RelmError as error:
        message = str(error).replace("(whole file): ", "")
    for text, flag in flags.items():
        message = message.replace(text, flag)
    for key in kind.model_fields:
        after = r"(?!\w)" if "_" in key else r"(?=: | \()"  # not the plain word
        message = re.sub(rf"(?<![\w.-]){key}{after}", f"--{key.replace('_', '-')}", message)
    raise RelmError(message)
