"""Pregenerate and open the examples of an objective with the functions that its declaration names."""

from collections.abc import Callable
from pathlib import Path

from relm.errors import RelmError
from relm.examples.contract import Examples
from relm.examples.tokenization.encoder import Disagreement, library_only
from relm.recipes.declaration import load
from relm.recipes.objectives import Objective

Pregenerate = Callable[[Path, Path, Path, Objective, str, int | None], str]


def pregenerate(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Encode a file of documents as one shard of examples, `output`, with a sidecar and for a .bin an .idx; return a sentence.

    `documents` are JSON lines, compared with their sidecar if they have one. The objective decides the content; objectives that
    read a stream of tokens share one. The language, a BCP 47 code, chooses the rules of the sentence splitter. The number of
    workers (None: one per core) changes no byte.

    Raises RelmError for an input that is absent, changed or damaged, with its file and line, or when a worker was killed.
    """
    build = _pregenerate(objective)
    try:
        return build(documents, tokenizer, output, objective, language, workers)
    except Disagreement as disagreement:
        with library_only():
            sentence = build(documents, tokenizer, output, objective, language, workers)
        return f"{sentence}; encoded by the tokenizers library, because {disagreement}"


def _pregenerate(objective: Objective) -> Pregenerate:
    original = objective.original
    name = (original and original.pregenerate) or objective.declaration.pregenerate
    if name is None:
        raise RelmError(f"objective {objective.objective}: not for pregeneration; an evaluation makes its examples")
    function: Pregenerate = load(name)
    return function


def open_examples(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> Examples:
    """Return the examples of one split, which can be read in any order.

    The seed decides masks that are drawn at reading time. `check_content` compares each shard's sha256 with the manifest;
    otherwise only its size. Raises RelmError if a shard is absent or differs from the manifest, the objective is another one,
    or the split is too short.
    """
    original = objective.original
    read = load((original and original.read) or objective.declaration.read)
    examples: Examples = read(manifest, split, objective, seed, check_content)
    return examples
