"""Compare a file of documents with its sidecar while a step already reads it, so that the step need not wait for the hash."""

import contextlib
import threading
from collections.abc import Callable, Iterator
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
    check = _Check(documents)
    check.start()
    try:
        yield check.result
    except RelmError:
        check.result()
        raise


class _Check(threading.Thread):
    def __init__(self, documents: Path) -> None:
        super().__init__(daemon=True)  # Ctrl-C does not wait for it
        self.documents = documents
        self.found: tuple[str, bool] | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.found = checked_documents(self.documents)
        except Exception as error:  # raised where the result is used
            self.error = error

    def result(self) -> tuple[str, bool]:
        self.join()
        if self.error is not None:
            raise self.error
        assert self.found is not None
        return self.found
