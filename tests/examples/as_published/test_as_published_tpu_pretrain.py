import functools
import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
from original_records import format_lines
from prose_sample import blocks_of, save_wordpiece, words_of
from published_phases import published_objective

from relm.artifact import checked_sidecar
from relm.errors import RelmError
from relm.examples.as_published.instances import Instance, pack_instances, split_columns
from relm.examples.as_published.tpu_pretrain import TpuPretrainOptions as Options
from relm.examples.as_published.tpu_pretrain import (
    TpuPretrainVocabulary,
    make_instances,
    pregenerate_tpu_pretrain,
    read_vocabulary,
)
from relm.examples.table import ExampleTable
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from tiny_runs import byte_tokenizer

# The original's options for sequences of 128 tokens, as RoBERTa's and as BERT's.
PLAIN = Options(128, 20)
PAIRS = Options(128, 20, next_sentences=True)
# Settings, seed, epochs -> instances, and the sha256 of the files epoch_0.json, epoch_1.json ... one after the other. Facts,
# computed by running the original's own input_file_to_training_data (allenai/tpu_pretrain at 10e8f26, with pytorch_transformers
# 1.2.0) on tests/data/prose-sample.txt with prose-vocabulary.txt after random.seed(seed).
PUBLISHED = [
    (PLAIN, 42, 2, 32, "164fd9aaf8ad34c2bddef1829f44230035fed0e95c9fdea1d5d05c828bd9eeef"),
    (PAIRS, 42, 2, 45, "6b12ed39162fa61317a0cdf089c509b81f70dc8268080383fdf1e9882c267a15"),
    (Options(128, 20, whole_words=True), 0, 1, 15, "3d58fc393017aef97a6ac41169f4d689c81dbc5851b95abda5c8a1687e94a91f"),
    (
        Options(128, 20, whole_words=True, next_sentences=True),
        7, 2, 49, "e6f9bb3d531cabb4d95f7efa64db671c683158fa1536f4b487d5ff185c0c02f8",
    ),
    (Options(384, 58, next_sentences=True), 1, 3, 53, "5e5b4769c2d8ac68a5e5290ea598b38c6a993de65a814ed8aa85842b1104ed4e"),
    (Options(384, 58, whole_words=True), 1, 3, 25, "86aac1493219a70a3bf1e072e3776cb9eb34feb39e04e2f69c6ae4d51a11ef3a"),
    (Options(512, 75, whole_words=True), 42, 2, 17, "a9a3b02dc9d21801dc16b8cdab4065dbc227cd78e97afa3b606a2f5bd7bfb87b"),
    (
        Options(32, 20, 0.5, 0.9, whole_words=True, next_sentences=True),
        1234, 3, 112, "fc181e7deea0328198e3ad3fd44889d91ace9ac8fca74678a7f65c747b264aad",
    ),
    (Options(64, 3, 0.15, 0.0), 99, 2, 48, "c2939d7259e0808084d3bfe05c7158274c73f9ba4cee6a95f330a5bb1c17f3a9"),
]  # fmt: skip


def make_epochs(corpora, epochs: int, settings: Options, vocabulary: TpuPretrainVocabulary, seed: int):
    """Yield N of `epoch_N.json` and its instances, in the original's order; they are read in it, since all draw from one
    generator."""
    draws = random.Random(seed)
    for number, corpus in enumerate(corpora):
        for epoch in range(epochs):
            yield number + epoch * len(corpora), make_instances(corpus, settings, vocabulary, draws)


def format_line(instance: Instance, tokens: list[str]) -> str:
    """Return an instance as a line of `epoch_N.json`; the last token stands for -1, `MASK`."""
    sizes = len(instance.tokens), len(instance.positions)
    return next(format_lines(split_columns(pack_instances([instance], *sizes, pairs=True), *sizes), [*tokens, "[MASK]"]))


def digest_of_files(corpora, epochs: int, settings: Options, vocabulary: TpuPretrainVocabulary, seed: int) -> tuple[int, str]:
    """Lines, and the sha256 of the original's files by number."""
    files = {
        number: [format_line(instance, vocabulary.tokens) for instance in made]
        for number, made in make_epochs(corpora, epochs, settings, vocabulary, seed)
    }
    assert sorted(files) == list(range(len(corpora) * epochs))
    content = "".join(line for number in sorted(files) for line in files[number])
    return content.count("\n"), hashlib.sha256(content.encode()).hexdigest()


@pytest.fixture
def vocabulary(words) -> TpuPretrainVocabulary:
    return TpuPretrainVocabulary(words, words.index("[CLS]"), words.index("[SEP]"))


@pytest.mark.parametrize(("settings", "seed", "epochs", "count", "sha256"), PUBLISHED)
def test_files_are_those_of_the_original(
    settings, seed, epochs, count, sha256, blocks, write_documents, make_corpus, wordpiece, vocabulary
) -> None:
    corpus = make_corpus(write_documents("all.jsonl", blocks), wordpiece)
    assert digest_of_files([corpus], epochs, settings, vocabulary, seed) == (count, sha256)


def test_several_input_files_share_one_generator_and_interleave_their_epochs(
    blocks, write_documents, make_corpus, wordpiece, vocabulary
) -> None:
    corpora = [make_corpus(write_documents(f"{at}.jsonl", blocks[at : at + 3]), wordpiece) for at in (0, 3, 6)]
    settings = Options(128, 20, whole_words=True, next_sentences=True)
    # The same original, given three files of three, three and two documents.
    published = "303746fef89f10191c420e0d7abf21d73fff545841ee66da0891f60a89b60117"
    assert digest_of_files(corpora, 2, settings, vocabulary, 42) == (39, published)


@pytest.mark.parametrize(
    ("whole_words", "sha256"),
    [
        # Computed as above with RobertaTokenizer on the text with "and" replaced by "a##nd".
        (False, "f4abd44f44e857b9706338b9c20c2cb2aa213547b510280f9cb0ef128f843724"),
        (True, "4e3139f89f1847954e3be6c7248059affc0c0f372a15480c59032e2ddf15b6aa"),
    ],
)
def test_a_byte_level_vocabulary_gives_the_files_of_the_original(
    whole_words, sha256, blocks, write_documents, make_corpus, byte_level
) -> None:
    texts = [block.replace("and", "a##nd") for block in blocks]
    corpus = make_corpus(write_documents("all.jsonl", texts), byte_level)
    tokens = read_vocabulary(load_tokenizer(byte_level)).tokens
    settings = Options(128, 20, whole_words=whole_words)
    assert digest_of_files([corpus], 1, settings, TpuPretrainVocabulary(tokens, 0, 2), 42) == (26, sha256)


def test_goldens_are_matched_bit_for_bit(goldens, tmp_path, write_documents, make_corpus) -> None:
    words = words_of(goldens / "vocab.txt")
    tokenizer = save_wordpiece(words, tmp_path / "golden" / "tokenizer.json")
    text = (goldens / "sample.txt").read_text(encoding="utf-8")
    corpus = make_corpus(write_documents("golden.jsonl", blocks_of(text)), tokenizer)
    vocabulary = TpuPretrainVocabulary(words, words.index("[CLS]"), words.index("[SEP]"))
    for name, whole_words in (("", False), ("wwm_", True)):
        for epoch, made in make_epochs([corpus], 2, Options(128, 20, whole_words=whole_words), vocabulary, 42):
            lines = "".join(format_line(instance, words) for instance in made)
            golden = goldens / f"tpu_pretrain_seed42_{name}epoch_{epoch}.json"
            assert lines == golden.read_text(encoding="utf-8")


objective = functools.partial(published_objective, "tpu_pretrain", 42, 2)


def test_the_table_holds_the_instances_of_all_epochs(
    blocks, write_documents, make_corpus, wordpiece, vocabulary, tmp_path
) -> None:
    documents, output = write_documents("all.jsonl", blocks), tmp_path / "shard.arrow"
    message = pregenerate_tpu_pretrain(documents, wordpiece, output, objective(), "en", 1)
    assert message.startswith("made 45 examples as tpu_pretrain does")
    table, sidecar = ExampleTable(output), checked_sidecar(output)
    corpus = make_corpus(documents, wordpiece)
    made = [i for _, epoch in make_epochs([corpus], 2, PAIRS, read_vocabulary(load_tokenizer(wordpiece)), 42) for i in epoch]
    row = {name: table.rows(name, np.arange(45)) for name in table.columns}
    for number, instance in enumerate(made):
        length, count = len(instance.tokens), len(instance.positions)
        assert (row["length"][number], row["masked_count"][number]) == (length, count)
        assert row["input_ids"][number].tolist() == instance.tokens + [0] * (128 - length)
        assert row["masked_positions"][number].tolist() == instance.positions + [0] * (20 - count)
        assert row["masked_labels"][number].tolist() == instance.labels + [0] * (20 - count)
        assert row["second_start"][number] == instance.second_start
        assert row["next_sentence_label"][number] == instance.is_random
    assert (sidecar["examples"], sidecar["tokens"], sidecar["documents"]) == (45, int(row["length"].sum()), 8)
    assert sum(count for _, count in sidecar["length_histogram"]) == 45
    assert sidecar["settings"] == objective().stored_keys()


def test_workers_change_no_byte(blocks, write_documents, wordpiece, tmp_path) -> None:
    documents = write_documents("all.jsonl", blocks)
    for workers in (1, 2):
        pregenerate_tpu_pretrain(documents, wordpiece, tmp_path / f"{workers}.arrow", objective(), "en", workers)
    assert (tmp_path / "1.arrow").read_bytes() == (tmp_path / "2.arrow").read_bytes()


def test_rows_without_pairs_have_no_label_and_one_segment(blocks, write_documents, wordpiece, tmp_path) -> None:
    changed = objective(packing="document_sentences", whole_words=True)
    pregenerate_tpu_pretrain(write_documents("all.jsonl", blocks), wordpiece, tmp_path / "x.arrow", changed, "en", 1)
    table = ExampleTable(tmp_path / "x.arrow")
    numbers = np.arange(len(table))
    assert set(table.rows("next_sentence_label", numbers).tolist()) == {-1}
    assert table.rows("second_start", numbers).tolist() == table.rows("length", numbers).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"packing": "full_sentences"},
            r"masked.packing: tpu_pretrain has no option for full_sentences; set it to sentence",
        ),
        ({"masks": "dynamic"}, "masked.masks: tpu_pretrain has no option for dynamic; set it to static"),
        ({"selection": "bernoulli"}, "masked.selection: tpu_pretrain has no option for bernoulli"),
        ({"mask_share": 0.7}, r"masked.mask_share: tpu_pretrain has no option for 0.7; set it to 0.8"),
        ({"max_predictions": None}, "masked.max_predictions: tpu_pretrain always has a limit"),
        ({"sequence_length": 4}, "sequence_length: 4, but tpu_pretrain needs 5"),
    ],
)
def test_options_that_the_original_lacks_are_refused(change, message, blocks, write_documents, wordpiece, tmp_path) -> None:
    with pytest.raises(RelmError, match=message):
        pregenerate_tpu_pretrain(
            write_documents("all.jsonl", blocks), wordpiece, tmp_path / "x.arrow", objective(**change), "en", 1
        )
    assert not (tmp_path / "x.arrow").exists()


def test_a_single_document_is_refused_and_an_empty_shard_is_not(blocks, write_documents, wordpiece, tmp_path) -> None:
    with pytest.raises(RelmError, match="draws sentences of other documents, but there is 1; put more"):
        pregenerate_tpu_pretrain(
            write_documents("one.jsonl", blocks[:1]), wordpiece, tmp_path / "x.arrow", objective(), "en", 1
        )
    pregenerate_tpu_pretrain(write_documents("none.jsonl", []), wordpiece, tmp_path / "none.arrow", objective(), "en", 1)
    assert len(ExampleTable(tmp_path / "none.arrow")) == 0


def test_a_file_without_text_is_refused_unless_its_sidecar_records_it(write_documents, wordpiece, tmp_path) -> None:
    blank, unknown = write_documents("blank.jsonl", [" \n"]), write_documents("unknown.jsonl", [])
    unknown.with_name("unknown.jsonl.json").unlink()
    for path in (blank, unknown):
        with pytest.raises(RelmError, match=rf"{path.name}: holds no text; extract"):
            pregenerate_tpu_pretrain(path, wordpiece, tmp_path / "x.arrow", objective(), "en", 1)


def test_split_sentences_are_refused_where_a_space_would_show(blocks, write_documents, byte_level, tmp_path) -> None:
    changed = objective(sentences="split")
    with pytest.raises(
        RelmError, match=r"masked.sentences: split keeps the space .* give documents with one sentence per line"
    ):
        pregenerate_tpu_pretrain(write_documents("all.jsonl", blocks), byte_level, tmp_path / "x.arrow", changed, "en", 1)


def test_special_tokens_may_lie_after_the_models_vocabulary(blocks, write_documents, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    start = tokenizer.token_to_id("<s>")
    assert start >= tokenizer.get_vocab_size(with_added_tokens=False)
    output = tmp_path / "table.arrow"
    settings = published_objective("tpu_pretrain", 42, 1, whole_words=True)
    pregenerate_tpu_pretrain(write_documents("all.jsonl", blocks), tmp_path / "tokenizer.json", output, settings, "en", 1)
    table = ExampleTable(output)
    assert set(table.rows("input_ids", np.arange(len(table)))[:, 0].tolist()) == {start}
