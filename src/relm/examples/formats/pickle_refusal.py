"""Refuse Python pickles, in which Graphcore's GPT-2 keeps articles: reading one runs any code in it, so none is opened."""

from pathlib import Path
from typing import NoReturn

from relm.errors import RelmError

SUFFIXES = (".pkl", ".pickle")


def refuse_pickle(path: Path) -> NoReturn:
    """Raise RelmError with the reason and what to do instead."""
    raise RelmError(
        f"{path}: a pickle is not read: unpickling runs any code in it. Use the text that it was built from "
        "(wikipedia_preprocess.py reads wikicorpus_en_one_article_per_line.txt) as a dataset, and make the examples with "
        "`relm pregenerate`"
    )
