"""Export examples to other programs' formats and import them: the table of formats with their functions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import read_sidecar, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.examples.formats import exports, imports, token_files
from relm.examples.formats.pickle_refusal import SUFFIXES, refuse_pickle
from relm.examples.storage import index_of

EXPORTS: Mapping[str, tuple[str, Callable[..., str]]] = {
    "tfrecord": (".tfrecord", exports.export_tfrecord),
    "tfrecord_remasked": (".tfrecord", exports.export_remasked_tfrecord),
    "megatron": (".bin", exports.export_megatron),
    "tpu_pretrain": (".json", exports.export_tpu_pretrain),
}
IMPORTS: Mapping[str, Callable[..., str]] = {
    "tfrecord": imports.import_tfrecord,
    "megatron": imports.import_megatron,
    "tpu_pretrain": imports.import_tpu_pretrain,
    "llm_c": token_files.import_llm_c,
    "nanogpt": token_files.import_nanogpt,
}
# Formats of which the first tokens alone can be read.
CUT = ("llm_c", "nanogpt")


def export_examples(
    manifest: Path, split: str, format: str, output: Path, tokenizer: Path, sequence_length: int | None = None
) -> str:
    """Write all examples of a split in another program's format.

    - tfrecord: masked examples with static masks as Graphcore's BERT reads them; a stream of tokens as windows of
      `sequence_length`, as its GPT-2 does. An index goes beside it.
    - tfrecord_remasked: the former with the masked tokens first.
    - megatron: a stream of tokens, all shards as one `.bin` with its `.idx`.
    - tpu_pretrain: masked examples with static masks as JSON lines; ``NAME_metrics.json`` goes beside ``NAME.json``.

    Args:
        output: the file to write.
        tokenizer: the `tokenizer.json` that the examples were made with.
        sequence_length: tokens of a window, for a stream of tokens as TFRecord only.

    Returns:
        A sentence with the counts and files written.

    Raises:
        RelmError: the examples cannot be written in that format, or the inputs do not belong together.
    """
    if format not in EXPORTS:
        raise RelmError(f"--format: expected {', '.join(EXPORTS)}, found {format!r}")
    suffix, export = EXPORTS[format]
    if output.suffix != suffix:
        raise RelmError(f"{output}: a file of format {format} ends in {suffix}; rename it")
    source = exports.open_export(manifest, split, tokenizer)
    options: dict[str, Any] = {} if sequence_length is None else {"sequence_length": sequence_length}
    if options and (format, source.manifest.layout) != ("tfrecord", "tokens"):
        raise RelmError("--sequence-length: goes with --format tfrecord of a stream of tokens only; leave it out")
    return export(source, output, **options)


def import_examples(format: str, files: Sequence[Path], tokenizer: Path, output: Path, first_tokens: int | None = None) -> str:
    """Import examples of another program as one shard with its sidecar: a stream of tokens (.bin) or a table (.arrow).

    - tfrecord: records of Graphcore's BERT, plain or remasked, become a table; records of `input_ids` alone a stream.
    - megatron: `.bin` with `.idx`; the sequences of a document become one.
    - tpu_pretrain: JSON lines.
    - llm_c: shards of llm.c, a header and tokens of 16 bits; an end of text ends a document.
    - nanogpt: nanoGPT's `train.bin` or `val.bin`, tokens of 16 bits alone.
    - pickle: refused.

    Counts that the formats lack are computed from the tokens: words and bytes are those of the decoded text.

    Args:
        files: read in this order.
        tokenizer: the `tokenizer.json` that they were made with.
        first_tokens: the count of tokens that are read of each file, for llm_c and nanogpt; None: all.

    Returns:
        A sentence with the counts read.

    Raises:
        RelmError: a file is absent, damaged or of another format, or a token is not in the vocabulary; names file and record.
    """
    for path in files:
        if format == "pickle" or path.suffix in SUFFIXES:
            refuse_pickle(path)
    if format not in IMPORTS or not files:
        raise RelmError(f"--format: expected {', '.join(IMPORTS)} and at least one file, found {format!r}")
    if first_tokens is not None and format not in CUT:
        raise RelmError(f"--first-tokens: goes with --format {' or '.join(CUT)}; leave it out")
    for path in files:
        _require_tokenizer(path, tokenizer)
        if path.resolve() in (output.resolve(), index_of(output).resolve()):
            raise RelmError(f"{output}: --output would overwrite {path}, which is imported; give another path")
    cut = {"first_tokens": first_tokens} if format in CUT else {}
    return IMPORTS[format](files, tokenizer, output, **cut)


def _require_tokenizer(path: Path, tokenizer: Path) -> None:
    """Raise RelmError for another tokenizer than the one that a file's sidecar names, if it has one."""
    if not sidecar_of(path).exists():
        return
    wanted, found = read_sidecar(path).get("tokenizer_sha256"), sha256_of(tokenizer)
    if wanted not in (None, found):
        raise RelmError(
            f"{path}: was made with a tokenizer of sha256 {wanted}, but {tokenizer} has {found}; give the one it was made with"
        )
