"""Steps that make examples or import them, list them and show them."""

from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.identity import stored_identity
from relm.recipes.job_documents import objective_of_examples, require_path_of
from relm.recipes.objectives import OBJECTIVES, Objective
from relm.recipes.section import validate
from relm.steps.contract import (
    WORKERS,
    Arguments,
    Job,
    argument,
    command,
    given_keys,
    given_path,
    path,
    paths,
    positive,
    section_arguments,
    step,
)
from relm.steps.job_spec import JOB, document_of

DEFAULT_LANGUAGE = "en"
IMPORTED = ("llm_c", "nanogpt")


@step(
    "build training examples from documents: a stream of tokens, or a table of sequences",
    JOB,
    *section_arguments(Objective),
    argument("--language", metavar="CODE", help="language, for the sentence splitter; default: en"),
    path("--tokenizer", "tokenizer.json"),
    paths("--documents", "documents, JSON lines"),
    paths("--output", "a .bin (with an .idx next to it) or .arrow file for each file of documents"),
    WORKERS,
    epilog="Without --job, the options from --objective to --language are those of a recipe's phase; default: causal.",
)
def pregenerate(a: Arguments) -> Job:
    from relm.examples.builders import pregenerate

    if len(a.documents) != len(a.output):
        raise RelmError(f"pregenerate: {len(a.documents)} files of --documents need as many of --output, found {len(a.output)}")
    document = document_of(a, (*Objective.model_fields, "language"), lambda: document_of_examples(a))
    objective, language = objective_of_examples(document), document.get("language", DEFAULT_LANGUAGE)
    if not isinstance(language, str):
        raise RelmError(f"--job: language: expected a code such as en, found {language!r:.99}")
    for output in a.output:
        if a.job is not None:
            require_path_of(document, output)
        if output.suffix != objective.suffix:
            raise RelmError(f"pregenerate: --output {output}: objective {objective.objective} makes a {objective.suffix} file")

    def run() -> str:
        return "; ".join(
            pregenerate(documents, a.tokenizer, output, objective, language, a.workers)
            for documents, output in zip(a.documents, a.output, strict=True)
        )

    return Job(run, inputs=[*a.documents, a.tokenizer], outputs=a.output, checked_by_run=a.documents)


def document_of_examples(a: Arguments) -> dict[str, Any]:
    """Return the identity of examples that the options describe, without documents and tokenizer."""
    options = {"objective": "causal"} | given_keys(Objective, a)
    if options["objective"] not in OBJECTIVES or not OBJECTIVES[options["objective"]].stores_length:
        options = {"sequence_length": Objective.LONGEST} | options  # such examples are cut to a length when they are read
    return stored_identity(validate(Objective, options, Path("pregenerate")), a.language or DEFAULT_LANGUAGE)


@step(
    "list all shards of examples with their counts and hashes",
    paths("--sidecars", "the sidecars of the shards (.bin.json or .arrow.json), training first"),
    path("--output", "manifest.json"),
)
def manifest(a: Arguments) -> Job:
    from relm.examples.manifest import write_manifest

    shards: dict[str, list[Path]] = {"train": [], "held_out": []}
    for sidecar in a.sidecars:
        shard = sidecar.with_suffix("")  # FILE.bin.json -> FILE.bin
        split = Path(shard.stem).suffix.removeprefix(".")
        if split not in shards:
            raise RelmError(f"manifest: {sidecar}: expected a name like SHARD.train.bin.json or SHARD.held_out.arrow.json")
        shards[split].append(shard)
    shards = {split: found for split, found in shards.items() if found}
    inputs = [shard for split in shards.values() for shard in split]
    return Job(lambda: write_manifest(shards, a.output), inputs=inputs, outputs=[a.output], described=inputs)


@command(
    "show a few examples decoded, stored masks visible, and the statistics",
    argument("path", type=given_path, metavar="PATH", help="manifest.json, or a .bin, .idx or .arrow file"),
    path("--tokenizer", "tokenizer.json; default: ids are shown", required=False),
    argument("--examples", type=int, default=3, metavar="N", help="number of examples; default: 3"),
)
def inspect(a: Arguments) -> Job:
    from relm.examples.inspection import inspect

    return Job(lambda: inspect(a.path, a.tokenizer, a.examples), inputs=[a.path])


@step(
    "read files of tokens that another program wrote",
    argument("--format", required=True, choices=IMPORTED),
    paths("--files", "its files"),
    path("--tokenizer", "the tokenizer.json they were made with"),
    argument("--first-tokens", type=positive, metavar="N", help="read only the first N tokens of each file"),
    path("--output", "a .bin file"),
)
def import_(a: Arguments) -> Job:
    from relm.examples.token_files import import_tokens

    return Job(
        lambda: import_tokens(a.format, a.files, a.tokenizer, a.output, a.first_tokens),
        inputs=[*a.files, a.tokenizer],
        outputs=[a.output],
    )
