"""Export examples to other programs' formats and import them: the table of formats with their functions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from relm.artifact import read_sidecar, sidecar_of
from relm.errors import RelmError
from relm.examples.formats import exports, imports, token_files
from relm.examples.storage import index_of
from relm.examples.tokenization.tokenizer_files import load_tokenizer

EXPORTS: Mapping[str, tuple[str, Callable[[exports.ExportSource, Path], str]]] = {
    "tfrecord": (".tfrecord", exports.export_tfrecord),
    "tfrecord_remasked": (".tfrecord", exports.export_remasked_tfrecord),
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


def export_examples(manifest: Path, split: str, format: str, output: Path, tokenizer: Path) -> str:
    """Write the masked examples of a split, which have static masks, in another program's format; return a sentence.

    - tfrecord: as Graphcore's and Google's BERT read them.
    - tfrecord_remasked: the former with the masked tokens first.
    - tpu_pretrain: JSON lines; ``NAME.json`` gets a ``NAME_metrics.json``.
    """
    suffix, export = EXPORTS[format]
    if output.suffix != suffix:
        raise RelmError(f"{output}: a file of format {format} ends in {suffix}; rename it")
    return export(exports.open_export(manifest, split, tokenizer), output)


def import_examples(format: str, files: Sequence[Path], tokenizer: Path, output: Path, first_tokens: int | None = None) -> str:
    """Import examples of another program as one shard with its sidecar, a stream of tokens (.bin) or a table (.arrow).

    - tfrecord: records of Graphcore's or Google's BERT, plain or remasked, become a table.
    - megatron: `.bin` with `.idx`; the sequences of a document become one.
    - tpu_pretrain: JSON lines.
    - llm_c: shards of llm.c, a header and tokens of 16 bits; an end of text ends a document.
    - nanogpt: nanoGPT's `train.bin` or `val.bin`, tokens of 16 bits alone.

    Words and bytes, which the formats lack, are those of the decoded text. `first_tokens` is the count of tokens that are read
    of each file, for llm_c and nanogpt; None: all. Return a sentence with the counts.
    """
    if first_tokens is not None and format not in CUT:
        raise RelmError(f"--first-tokens: goes with --format {' or '.join(CUT)}; leave it out")
    loaded = load_tokenizer(tokenizer)
    for path in files:
        if sidecar_of(path).exists():
            loaded.require_made(path, read_sidecar(path).get("tokenizer_sha256"))
        if path.resolve() in (output.resolve(), index_of(output).resolve()):
            raise RelmError(f"{output}: --output would overwrite {path}, which is imported; give another path")
    cut = {"first_tokens": first_tokens} if format in CUT else {}
    return IMPORTS[format](files, loaded, output, **cut)
