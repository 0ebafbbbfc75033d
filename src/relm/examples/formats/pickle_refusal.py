"""Graphcore's GPT-2 keeps articles as a Python pickle. Reading one runs whatever code is in it, so it is never opened."""

from pathlib import Path
from typing import NoReturn

from relm.errors import RelmError

SUFFIXES = (".pkl", ".pickle")


def refuse_pickle(path: Path) -> NoReturn:
    """Say why, and what to do instead.

    Raises:
        RelmError: always.
    """
    raise RelmError(
        f"{path}: a pickle is not read: unpickling runs any code that its maker put into it. Take the text that it was made of "
        "(wikipedia_preprocess.py reads wikicorpus_en_one_article_per_line.txt) as a dataset, and make the examples with "
        "`relm pregenerate`"
    )
