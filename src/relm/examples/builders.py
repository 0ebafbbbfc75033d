"""Which code makes the examples of an objective, and which reads them: one table each, so that an objective is added here."""

from collections.abc import Callable
from pathlib import Path

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.examples.causal import CausalExamples
from relm.examples.contract import Examples
from relm.examples.encoder import Disagreement, library_only
from relm.examples.table import ExampleTables
from relm.examples.tokenizers import SpecialIds
from relm.recipes.objectives import TABLE, Objective

Build = Callable[[Path, Path, Path, Objective, str, int | None], str]


def pregenerate(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Turn a file of documents into one shard of examples: `output` with its sidecar, and an .idx beside a .bin.

    Args:
        documents: JSON lines; compared with its sidecar if it has one.
        tokenizer: `tokenizer.json`.
        objective: what is made; of a stream of tokens every objective makes the same.
        language: BCP 47 code of the text, for the sentence splitter.
        workers: processes; None: as many as there are cores. They change no byte.

    Returns:
        A sentence with counts and rate.

    Raises:
        RelmError: an input is absent, changed or faulty (file and line are named), or a worker was killed.
    """
    build = _builder(objective)
    try:
        return build(documents, tokenizer, output, objective, language, workers)
    except Disagreement as disagreement:
        with library_only():
            sentence = build(documents, tokenizer, output, objective, language, workers)
        return f"{sentence}; by the tokenizers library alone, for {disagreement}"


def _builder(objective: Objective) -> Build:
    if objective.as_published is not None and objective.as_published.builder != "graphcore_gpt2":
        from relm.examples.as_published import BUILDERS

        return BUILDERS[objective.as_published.builder]
    if objective.objective == "masked":
        from relm.examples.masked import pregenerate_masked

        return pregenerate_masked
    if objective.objective == "seq2seq":
        from relm.examples.seq2seq import pregenerate_seq2seq

        return pregenerate_seq2seq
    from relm.examples.pregenerate import pregenerate_stream

    return pregenerate_stream


def open_examples(manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True) -> Examples:
    """The examples of one split, ready to be read in any order.

    Args:
        seed: of what is drawn as they are read: dynamic masks, hidden spans.
        check_content: compare each shard's sha256 with the manifest, not its size alone.

    Raises:
        RelmError: a shard is absent or not the manifest's, the manifest is of another objective, or the split is too short.
    """
    if objective.layout == TABLE:
        return _opened_table(ExampleTables(manifest, split, check_content), manifest, objective, seed)
    if objective.objective == "span_corruption":
        from relm.examples.span_corruption import SpanCorruptionExamples

        return SpanCorruptionExamples(manifest, split, objective, seed, check_content)
    if objective.as_published is not None:
        from relm.examples.as_published.graphcore_gpt2 import GraphcoreGpt2Examples

        return GraphcoreGpt2Examples(manifest, split, objective, check_content)
    return CausalExamples(manifest, split, objective.sequence_length, objective.causal, check_content)


def _opened_table(tables: ExampleTables, manifest: Path, objective: Objective, seed: int) -> Examples:
    facts = tables.manifest
    if facts.objective != objective.objective:
        raise RelmError(f"{manifest}: holds {facts.objective} examples, expected {objective.objective}; pregenerate them again")
    if facts.settings and facts.settings != (wanted := objective.what_is_stored()):
        raise RelmError(
            f"{manifest}: was made with {canonical_json(facts.settings)}, but the phase wants {canonical_json(wanted)}; "
            "pregenerate them again"
        )
    special = SpecialIds(**facts.tokenizer.special)
    if objective.objective == "seq2seq":
        from relm.examples.seq2seq import Seq2SeqExamples

        return Seq2SeqExamples(tables, objective, special)
    from relm.examples.masked import MaskedExamples

    return MaskedExamples(tables, objective, seed, special, facts.tokenizer.vocabulary_size)
