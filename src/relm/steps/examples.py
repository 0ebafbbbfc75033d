"""Steps that make examples, list them, show them, and exchange them with other programs."""

from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.identity import (
    stored_identity,
)
from relm.recipes.job_documents import (
    objective_of_examples,
    require_path_of,
)
from relm.recipes.objectives import OBJECTIVES, Objective
from relm.steps.contract import (
    WORKERS,
    Arguments,
    Job,
    Step,
    argument,
    given_path,
    path,
    paths,
    plain_yaml,
    positive,
    unite_values,
)
from relm.steps.job_spec import JOB, document_of, validate_options

DEFAULT_LANGUAGE = "en"
EXPORTED = ("tfrecord", "tfrecord_remasked", "tpu_pretrain")
IMPORTED = ("tfrecord", "megatron", "tpu_pretrain", "llm_c", "nanogpt")


def pregenerate_job(a: Arguments) -> Job:
    from relm.examples.builders import pregenerate

    if len(a.documents) != len(a.output):
        raise RelmError(f"pregenerate: {len(a.documents)} files of --documents need as many of --output, found {len(a.output)}")
    if len(set(a.output)) < len(a.output):
        raise RelmError("pregenerate: --output names a file twice; give each file of documents one of its own")
    document = document_of(a, ("objective", "sequence_length", "option", "language"), lambda: document_of_examples(a))
    objective, language = objective_of_examples(document), document.get("language", DEFAULT_LANGUAGE)
    if not isinstance(language, str):
        raise RelmError(f"--job: language: expected a code such as en, found {language!r:.99}")
    if a.job is not None:
        for output in a.output:
            require_path_of(document, output)
    for output in a.output:
        if output.suffix != objective.suffix:
            raise RelmError(f"pregenerate: --output {output}: objective {objective.objective} makes a {objective.suffix} file")

    def run() -> str:
        return "; ".join(
            pregenerate(documents, a.tokenizer, output, objective, language, a.workers)
            for documents, output in zip(a.documents, a.output, strict=True)
        )

    return Job(run, inputs=[*a.documents, a.tokenizer], outputs=a.output, checked_by_run=a.documents)


def document_of_examples(a: Arguments) -> dict[str, Any]:
    """Return the identity of examples that the flags describe, without documents and tokenizer."""
    options: dict[str, Any] = {"objective": a.objective or "causal"}
    stores_length = options["objective"] in OBJECTIVES and OBJECTIVES[options["objective"]].stores_length
    if a.sequence_length is not None or not stores_length:  # other examples are cut to a length when they are read
        options["sequence_length"] = a.sequence_length or Objective.LONGEST
    for (section, key), value in unite_values("--option", a.option or ()).items():
        options[section] = {**options.get(section, {}), key: value}
    objective = validate_options(Objective, options, Path("pregenerate"), {})
    return stored_identity(objective, a.language or DEFAULT_LANGUAGE)


def objective_option(text: str) -> tuple[tuple[str, str], Any]:
    """Return section and key, and the value of `SECTION.KEY=VALUE`, which is read as in a recipe.

    >>> objective_option("masked.duplication_factor=10")
    (('masked', 'duplication_factor'), 10)
    """
    name, _, value = text.partition("=")
    section, _, key = name.partition(".")
    if not (section and key and value):
        raise ValueError(text)
    return (section, key), plain_yaml(value)


def inspect_job(a: Arguments) -> Job:
    from relm.examples.inspection import inspect

    return Job(lambda: inspect(a.path, a.tokenizer, a.examples), inputs=[a.path])


def export_job(a: Arguments) -> Job:
    from relm.examples.formats.exchange import export_examples

    return Job(
        lambda: export_examples(a.manifest, a.split, a.format, a.output, a.tokenizer),
        inputs=[a.manifest, a.tokenizer],
        outputs=[a.output],
    )


def import_job(a: Arguments) -> Job:
    from relm.examples.formats.exchange import import_examples

    return Job(
        lambda: import_examples(a.format, a.files, a.tokenizer, a.output, a.first_tokens),
        inputs=[*a.files, a.tokenizer],
        outputs=[a.output],
    )


def manifest_job(a: Arguments) -> Job:
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


STEPS: dict[str, Step] = {
    "pregenerate": Step(
        "build training examples from documents: a stream of tokens, or a table of sequences",
        [
            JOB,
            argument("--objective", metavar="NAME", help="instead of --job: as in a recipe's phase; default: causal"),
            argument(
                "--sequence-length",
                type=positive,
                metavar="N",
                help="with it, for masked: tokens per sequence",
            ),
            argument(
                "--option",
                type=objective_option,
                nargs="+",
                metavar="SECTION.KEY=VALUE",
                help="with it: options as in a recipe's phase, such as masked.packing=sentence_pairs",
            ),
            argument("--language", metavar="CODE", help="with it: language, for the sentence splitter; default: en"),
            path("--tokenizer", "tokenizer.json"),
            paths("--documents", "documents, JSON lines"),
            paths("--output", "a .bin (an .idx goes beside it) or .arrow file for each file of documents"),
            WORKERS,
        ],
        pregenerate_job,
        group="data",
    ),
    "inspect": Step(
        "show a few examples decoded, stored masks visible, and the statistics",
        [
            argument("path", type=given_path, metavar="PATH", help="manifest.json, or a .bin, .idx or .arrow file"),
            path("--tokenizer", "tokenizer.json; default: ids are shown", required=False),
            argument("--examples", type=int, default=3, metavar="N", help="number of examples; default: 3"),
        ],
        inspect_job,
        records=False,
        group="data",
    ),
    "export": Step(
        "write masked examples in another program's format",
        [
            path("--manifest", "the examples' manifest"),
            argument("--split", default="train", metavar="NAME", help="train (default) or held_out"),
            argument("--format", required=True, choices=EXPORTED, help="the format"),
            path("--tokenizer", "tokenizer.json"),
            path("--output", "the file to write"),
        ],
        export_job,
        in_recipes=False,
        group="data",
    ),
    "import": Step(
        "read examples that another program wrote",
        [
            argument("--format", required=True, choices=IMPORTED),
            paths("--files", "its files"),
            path("--tokenizer", "the tokenizer.json they were made with"),
            argument("--first-tokens", type=positive, metavar="N", help="for llm_c and nanogpt: read the first N tokens only"),
            path("--output", "a .bin or .arrow file"),
        ],
        import_job,
        group="data",
    ),
    "manifest": Step(
        "list all shards of examples with their counts and hashes",
        [
            paths("--sidecars", "the sidecars of the shards (.bin.json or .arrow.json), training first"),
            path("--output", "manifest.json"),
        ],
        manifest_job,
        group="data",
    ),
}
