"""Measure the originals' defects on real text against the default: `python benchmarks/defects.py WIKITEXT --bert FOLDER ...`.

Prints the table of docs/as_published.md. WIKITEXT is a WikiText file such as wiki.train.raw, which may be compressed; the
folders hold published tokenizers: vocab.txt (BERT), vocab.json and merges.txt (RoBERTa), encoder.json and vocab.bpe (GPT-2).
"""

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import checked_sidecar
from relm.corpus.documents import Document, encode_document
from relm.corpus.documents import read_documents as read_documents_file
from relm.corpus.line_documents import batch_articles
from relm.corpus.sentences import split_sentences
from relm.examples import packing
from relm.examples.as_published import graphcore_bert, graphcore_gpt2, tpu_pretrain
from relm.examples.as_published.instances import pack_instances, split_columns
from relm.examples.as_published.pairs import Corpus
from relm.examples.as_published.tables import read_documents
from relm.examples.builders import pregenerate
from relm.examples.masking import capacity, mask_rows
from relm.examples.order import row_keys
from relm.examples.packing import Text
from relm.examples.table import ExampleTable
from relm.examples.tokenization.encoder import TextEncoder
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, import_tokenizer, load_tokenizer
from relm.examples.tokenized import tokenize_documents
from relm.recipes.as_published import AsPublished
from relm.recipes.datasets import Dataset
from relm.recipes.objectives import Objective

SEED = 42
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


class Inputs(NamedTuple):
    """Files that all measurements read."""

    articles: Path
    """The documents, unchanged."""
    sentences: Path
    """The same, each line cut into sentences, one a line."""
    spaced: Path
    """The same, with a space before each sentence."""
    bert: Path
    roberta: Path
    gpt2: Path
    work: Path


class Masks(NamedTuple):
    """Sequences with masked tokens, (rows, L) each, padded."""

    hidden: Flags
    word_starts: Flags
    ids: Integers
    """The token ids, masked ones replaced."""
    lengths: Integers


class Noted(Corpus):
    """A corpus that records the spans read, two for each instance."""

    spans: list[tuple[int, int]]

    def between(self, start: int, stop: int) -> list[int]:
        self.spans.append((start, stop))
        return super().between(start, stop)


def noted(corpus: Corpus) -> Noted:
    result = Noted(*corpus)
    result.spans = []
    return result


def row(name: str, published: str, default: str) -> None:
    print(f"| {name} | {published} | {default} |", flush=True)


def share(part: Any, whole: Any, digits: int = 1) -> str:
    """
    >>> share(1, 8)
    '1 of 8 (12.5 %)'
    """
    return f"{int(part):,} of {int(whole):,} ({100 * int(part) / max(1, int(whole)):.{digits}f} %)"


# --- the text --------------------------------------------------------------------------------------------------------------


def prepared(wikitext: Path, bert: Path, roberta: Path, gpt2: Path, work: Path) -> Inputs:
    """Return the documents and tokenizers, in `work`."""
    files = [work / f"{name}.jsonl" for name in ("articles", "sentences", "spaced")]
    with open(files[0], "wb") as articles, open(files[1], "wb") as sentences, open(files[2], "wb") as spaced:
        for article in articles_of(wikitext):
            lines = sentences_of(article.text)
            articles.write(encode_document(article).line)
            sentences.write(encode_document(article._replace(text="\n".join(lines))).line)
            spaced.write(encode_document(article._replace(text="\n".join(f" {line}" for line in lines))).line)
    tokenizers = []
    for kind, folder, names in (
        ("bert_wordpiece_uncased", bert, ("vocab.txt",)),
        ("roberta_bpe", roberta, ("vocab.json", "merges.txt")),
        ("gpt2_bpe", gpt2, ("vocab.json", "merges.txt")),
    ):
        tokenizers.append(work / kind / "tokenizer.json")
        import_tokenizer(kind, {name: published_file(folder, name) for name in names}, tokenizers[-1])
    return Inputs(*files, *tokenizers, work)


def articles_of(path: Path) -> Iterator[Document]:
    source = {"title": "", "licence": "", "language": "en", "format": "wikitext", "folder": str(path.parent)}
    for batch in batch_articles(Dataset.model_validate(source), path):
        yield from (Document(str(number), title, text) for number, title, text in batch)


def sentences_of(text: str) -> list[str]:
    lines = (line.strip() for line in text.split("\n"))
    return [piece.strip() for line in lines if line for piece in split_sentences(line, "en")]


def published_file(folder: Path, name: str) -> Path:
    """Return a tokenizer's file, which OpenAI calls otherwise."""
    other = {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}.get(name, name)
    return folder / (name if (folder / name).exists() else other)


# --- the default -----------------------------------------------------------------------------------------------------------


def default_table(inputs: Inputs, tokenizer: Path, length: int, **masked: object) -> ExampleTable:
    """Sequences of the default, without masks."""
    output = inputs.work / "default.arrow"
    pregenerate(inputs.articles, tokenizer, output, masked_objective(length, **masked), "en", 1)
    return ExampleTable(output)


def masked_objective(length: int, **masked: object) -> Objective:
    return Objective.model_validate({"objective": "masked", "sequence_length": length, "masked": masked})


def default_masks(table: ExampleTable, objective: Objective, loaded: LoadedTokenizer) -> Masks:
    """Return all of them, as in the first epoch."""
    numbers = np.arange(len(table))
    ids, lengths, starts = (table.rows(name, numbers) for name in ("input_ids", "length", "word_starts"))
    keys = row_keys("masks", SEED, np.zeros_like(numbers), numbers)
    places = capacity(objective.masked, objective.sequence_length)
    size = loaded.vocabulary_size
    made = mask_rows(ids, lengths, keys, objective.masked, loaded.special, size, places, starts)
    hidden = np.zeros(ids.shape, dtype=np.bool_)
    rows, nth = np.nonzero(np.arange(places) < made.counts[:, None])
    hidden[rows, made.positions[rows, nth]] = True
    return Masks(hidden, starts, made.input_ids.astype(np.int64), lengths.astype(np.int64))


# --- tpu_pretrain ----------------------------------------------------------------------------------------------------------


def measure_pairs(inputs: Inputs) -> None:
    settings = tpu_pretrain.TpuPretrainOptions(128, 20, next_sentences=True)
    with read_documents(inputs.sentences, inputs.bert, "lines", "en", 1) as (corpus, _, loaded):
        made = list(tpu_pretrain.make_instances(corpus, settings, tpu_pretrain.read_vocabulary(loaded), random.Random(SEED)))
    positive = [instance for instance in made if not instance.is_random]
    empty = sum(instance.second_start == len(instance.tokens) - 1 for instance in positive)
    table = default_table(inputs, inputs.bert, 128, packing="sentence_pairs", short_sequence_probability=0.1)
    numbers = np.arange(len(table))
    follows = table.rows("next_sentence_label", numbers) == 0
    second = table.rows("length", numbers).astype(np.int64) - table.rows("second_start", numbers) - 1
    row(
        "tpu_pretrain, c: pairs that follow each other whose second segment is empty",
        share(empty, len(positive)),
        share((second[follows] == 0).sum(), follows.sum()),
    )


def measure_roberta(inputs: Inputs) -> None:
    """Measure the recorded command: roberta-base, whole words, 512 tokens, 75 predictions."""
    loaded = load_tokenizer(inputs.roberta)
    published, random_next = published_masks(inputs, whole_words=True)
    without, _ = published_masks(inputs, whole_words=False)
    objective = masked_objective(512, whole_words=True)
    default = default_masks(default_table(inputs, inputs.roberta, 512), objective, loaded)
    unknown, mask = loaded.required("unk"), loaded.required("mask")
    row(
        "tpu_pretrain, a: masked tokens that training reads as `<unk>`, and as `<mask>`",
        *(
            f"{share((made.ids[made.hidden] == unknown).sum(), made.hidden.sum())}, "
            f"{share((made.ids[made.hidden] == mask).sum(), made.hidden.sum())}"
            for made in (published, default)
        ),
    )
    row(
        "tpu_pretrain, b: words of several tokens that are masked in part, of those that are masked at all, with the option "
        "that should mask whole words",
        f"{in_part(published)}; without the option {in_part(without)}",
        in_part(default),
    )
    row(
        "tpu_pretrain, d: sequences with sentences of a random document appended, although next sentences are off",
        share(random_next.sum(), len(random_next)),
        "none: sentences are packed in the text's order, with a separator between documents",
    )
    row(
        "tpu_pretrain, f: sentences without a space before them",
        unspaced(inputs.spaced, loaded),
        unspaced(inputs.articles, loaded),
    )
    row(
        "tpu_pretrain, h: tokens of the longest sequence of 512, and positions that hold a token",
        *(f"{made.lengths.max()}, {share(made.lengths.sum(), made.ids.size)}" for made in (published, default)),
    )


def published_masks(inputs: Inputs, whole_words: bool) -> tuple[Masks, Flags]:
    """Return the instances of one epoch, and whether they have tokens of a random document."""
    settings = tpu_pretrain.TpuPretrainOptions(512, 75, whole_words=whole_words)
    with (
        read_documents(inputs.sentences, inputs.roberta, "lines", "en", 1) as (corpus, _, loaded),
        tokenize_documents(inputs.spaced, inputs.roberta, "lines", "en", 1) as with_words,
    ):
        assert np.array_equal(corpus.tokens, with_words.tokens)
        corpus = noted(corpus)
        made = list(tpu_pretrain.make_instances(corpus, settings, tpu_pretrain.read_vocabulary(loaded), random.Random(SEED)))
        word_starts = np.zeros((len(made), 512), dtype=np.bool_)
        spans = iter(corpus.spans)
        for starts, instance in zip(word_starts, made, strict=True):
            parts = [with_words.word_starts[slice(*next(spans))].copy() for _ in range(2)]
            for part in parts:
                part[:1] = True
            starts[: len(instance.tokens)] = np.concatenate([[True], *parts, [True]])
    columns = split_columns(pack_instances(made, 512, 75, pairs=False), 512, 75)
    hidden = np.zeros(word_starts.shape, dtype=np.bool_)
    for flags, instance in zip(hidden, made, strict=True):
        flags[instance.positions] = True
    masks = Masks(hidden, word_starts, columns["input_ids"].astype(np.int64), columns["length"].astype(np.int64))
    return masks, np.array([instance.is_random for instance in made])


def in_part(masks: Masks) -> str:
    """Return the share of words of several tokens with a masked token that have an unmasked one, too."""
    within = np.arange(masks.ids.shape[1]) < masks.lengths[:, None]
    words = np.cumsum(masks.word_starts[within]) - 1
    sizes = np.bincount(words)
    hidden = np.bincount(words, weights=masks.hidden[within])
    touched = (sizes > 1) & (hidden > 0)
    return share((touched & (hidden < sizes)).sum(), touched.sum())


def unspaced(documents: Path, loaded: LoadedTokenizer) -> str:
    """Return the share of sentences whose first token does not begin with a space."""
    kind = "split" if documents.name == "articles.jsonl" else "lines"
    with tokenize_documents(documents, loaded.path, kind, "en", 1) as found:
        first = found.tokens[found.sentence_starts[:-1]].tolist()
    return share(sum(not (loaded.tokenizer.id_to_token(token) or "").startswith("Ġ") for token in first), len(first))


# --- graphcore_bert --------------------------------------------------------------------------------------------------------


def measure_bert(inputs: Inputs, length: int, predictions: int) -> None:
    settings = graphcore_bert.GraphcoreBertOptions(length, predictions, duplication_factor=5)
    with read_documents(inputs.sentences, inputs.bert, "lines", "en", 1) as (corpus, _, loaded):
        corpus = noted(corpus)
        vocabulary = graphcore_bert.read_vocabulary(loaded)
        made = list(graphcore_bert.make_instances(corpus, settings, vocabulary, random.Random(SEED)))
        document = documents_of(corpus.sentence_starts, corpus.document_starts, np.array(corpus.spans)[:, 0]).reshape(-1, 2)
    name = f"graphcore_bert, {length} tokens"
    drawn = np.array([instance.is_random for instance in made])
    same = (document[:, 0] == document[:, 1]) & drawn
    row(
        f"{name}: random second segments from the current document",
        share(same.sum(), drawn.sum(), 3),
        own_negatives(inputs, length),
    )
    columns = split_columns(pack_instances(made, length, predictions, pairs=True), length, predictions)
    fields = graphcore_bert.remask(columns, predictions)
    tokens, kept = int(columns["length"].sum()), fields["mask_padding_index"] + fields["seq_padding_index"] - predictions
    lost = int(columns["masked_count"].sum() - fields["mask_padding_index"].sum())
    row(
        f"{name}: tokens that remasking drops because their id is 0, and masked ones among them, whose label is lost",
        f"{share(tokens - kept.sum(), tokens, 5)}, {lost:,}",
        "none: the length says where padding begins",
    )
    wanted = np.minimum(predictions, np.maximum(1, np.round(columns["length"] * settings.probability)))
    more = columns["masked_count"] > wanted
    row(f"{name}: sequences with more masked tokens than the probability gives", share(more.sum(), len(more)), "none")


def documents_of(sentence_starts: Integers, document_starts: Integers, tokens: Integers) -> Integers:
    """Return the document that each token belongs to."""
    return np.searchsorted(sentence_starts[document_starts], tokens, side="right") - 1


def own_negatives(inputs: Inputs, length: int) -> str:
    options = masked_objective(length, packing="sentence_pairs", short_sequence_probability=0.1, duplication_factor=5).masked
    same = drawn = 0
    with tokenize_documents(inputs.articles, inputs.bert, "split", "en", 1) as found:
        text = Text(found.sentence_starts, found.document_starts)
        for repetition in range(options.duplication_factor):
            for pairs in packing.packed(text, packing.Packing(options, length, found.source_sha256, repetition)):
                starts = (pairs.first_start[pairs.label == 1], pairs.second_start[pairs.label == 1])
                first, second = (documents_of(*text, part) for part in starts)
                same, drawn = same + int((first == second).sum()), drawn + len(first)
    return share(same, drawn, 3)


# --- run_mlm and graphcore_gpt2 --------------------------------------------------------------------------------------------


def measure_run_mlm(inputs: Inputs) -> None:
    published = {"builder": "run_mlm"}
    masked = {"selection": "bernoulli"}
    objective = masked_objective(512, **masked).model_copy(update={"as_published": AsPublished.model_validate(published)})
    output = inputs.work / "run_mlm.arrow"
    pregenerate(inputs.articles, inputs.bert, output, objective, "en", 1)
    facts, table, loaded = checked_sidecar(output), ExampleTable(output), load_tokenizer(inputs.bert)
    tokens = facts["tokens"] + facts["dropped_tokens"]
    blocks = table.rows("input_ids", np.arange(len(table)))
    special = np.isin(blocks, [loaded.required("cls"), loaded.required("sep")]).sum()
    blank = ((blocks[:, :-1] == loaded.required("cls")) & (blocks[:, 1:] == loaded.required("sep"))).sum()
    default = default_table(inputs, inputs.bert, 512)
    numbers = np.arange(len(default))
    ids, lengths = default.rows("input_ids", numbers), default.rows("length", numbers).astype(np.int64)
    ours = np.isin(ids, [loaded.required("cls"), loaded.required("sep")]).sum()
    row("run_mlm: sequences", f"{facts['examples']:,} of {facts['rows']:,} rows", f"{len(default):,}")
    row("run_mlm: tokens dropped, the remainder of each 1,000 rows", share(facts["dropped_tokens"], tokens, 2), "0")
    row("run_mlm: tokens that are `[CLS]` or `[SEP]`", share(special, blocks.size), share(ours, lengths.sum()))
    row("run_mlm: of these, those of blank lines", share(2 * blank, special), "0")


def measure_gpt2(inputs: Inputs) -> None:
    texts = [document.text for document in read_documents_file(inputs.articles)]
    sizes = TextEncoder(load_tokenizer(inputs.gpt2).tokenizer).encoded(texts).sizes + np.int32(1)  # the end of text
    for epochs in (1, 20):
        documents = np.array(graphcore_gpt2.split_documents(len(sizes), "train"))
        maps = graphcore_gpt2.draw_index_maps(sizes, documents, epochs, 1024, 1234)
        tokens = epochs * int(sizes[documents].sum())
        tail = tokens - 1 - 1024 * len(maps.shuffle_idx)
        several = np.diff(maps.sample_idx[:, 0]) > 0
        name = f"graphcore_gpt2, epochs {epochs}"
        row(
            f"{name}: tokens at the end of the stream that no sample predicts",
            share(tail, tokens, 4),
            "the same, in each epoch",
        )
        row(f"{name}: samples that span documents", share(several.sum(), len(several)), "the same, unless document_attention")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wikitext", type=Path, metavar="WIKITEXT")
    for name in ("bert", "roberta", "gpt2"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="FOLDER", help="of the published tokenizer")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        inputs = prepared(given.wikitext, given.bert, given.roberta, given.gpt2, Path(work))
        print("| defect | as published | by default |\n| --- | --- | --- |")
        measure_roberta(inputs)
        measure_pairs(inputs)
        measure_bert(inputs, 128, 20)
        measure_bert(inputs, 384, 58)
        measure_run_mlm(inputs)
        measure_gpt2(inputs)


if __name__ == "__main__":
    main()
