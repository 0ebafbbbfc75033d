"""Compare a file of documents with its sidecar while a step already reads it, so that the step need not wait for the hash."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

from relm.errors import RelmError
from relm.examples.documents import checked_documents, require_documents


@contextlib.contextmanager
def checked_meanwhile(documents: Path) -> Iterator[Callable[[], tuple[str, bool]]]:
    """Run `checked_documents` in a thread while the block runs.

    Yields a function that waits for its result, or raises its error. The block calls it before its outputs appear. Where the
    block fails, a change of the file is the error that is raised, since a fault of its content may only follow from it.
    """
    require_documents(documents)
    check: Future[tuple[str, bool]] = Future()

    def run() -> None:
        try:
            check.set_result(checked_documents(documents))
        except Exception as error:  # raised where the result is used
            check.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # Ctrl-C does not wait for it
    try:
        yield check.result
    except RelmError:
        check.result()
        raise
