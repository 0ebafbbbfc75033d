import itertools
import json
import lzma
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, pre_tokenizers
from transformers import BertTokenizer

from relm.artifact import read_sidecar, sha256_of
from relm.errors import RelmError
from relm.examples.documents import read_first_texts
from relm.examples.tokenization.encoder import TextEncoder, ids_by_library
from relm.examples.tokenization.tokenizer_files import (
    LoadedTokenizer,
    SpecialIds,
    import_tokenizer,
    load_tokenizer,
    train_tokenizer,
)

TRAIN = """
import sys
from pathlib import Path
from relm.examples.tokenization.tokenizer_files import train_tokenizer
size = None if sys.argv[3] == "characters" else 600
train_tokenizer(sys.argv[3], [Path(sys.argv[1])], size, 10**9, Path(sys.argv[2]), lower_case=sys.argv[3] == "wordpiece")
"""


@pytest.mark.parametrize("kind", ["byte_level_bpe", "roberta_byte_level_bpe", "wordpiece", "characters"])
@pytest.mark.parametrize(
    "environment",
    [{"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "2"}, {"TOKENIZERS_PARALLELISM": "false"}],
    ids=["one thread", "two threads", "no threads"],
)
def test_training_gives_the_same_bytes_in_every_process(tmp_path, write_documents, prose, kind, environment) -> None:
    documents = write_documents("a.jsonl", prose)
    size = None if kind == "characters" else 600
    train_tokenizer(kind, [documents], size, 10**9, tmp_path / "here.json", lower_case=kind == "wordpiece")
    command = [sys.executable, "-c", TRAIN, str(documents), str(tmp_path / "there.json"), kind]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()


def test_ties_between_pairs_are_decided_the_same_way_in_every_process(tmp_path, write_documents) -> None:
    # Of 26 letters each pair occurs as often as its mirror image: nearly every merge is a tie.
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = [" ".join(a + b + a for a in letters for b in letters)] * 2
    documents = write_documents("ties.jsonl", texts)
    hashes = set()
    for attempt in range(2):
        output = tmp_path / f"{attempt}.json"
        subprocess.run([sys.executable, "-c", TRAIN, str(documents), str(output), "byte_level_bpe"], check=True)
        hashes.add(sha256_of(output))
    assert len(hashes) == 1


def test_a_trained_tokenizer_has_every_byte_and_the_wanted_size(tokenizer: Path) -> None:
    loaded = load_tokenizer(tokenizer)
    assert loaded.vocabulary_size == len(loaded.tokenizer.get_vocab()) == 400
    assert loaded.special.end_of_text == 0
    assert {loaded.tokenizer.token_to_id(c) for c in pre_tokenizers.ByteLevel.alphabet()} == set(range(1, 257))
    for text in ("никогда 中文 \x00\x7f🙂", "  two  spaces\n"):
        assert loaded.tokenizer.decode(loaded.tokenizer.encode(text).ids) == text
    assert read_sidecar(tokenizer) == {
        "file": "tokenizer.json",
        "sha256": loaded.sha256,
        "size": tokenizer.stat().st_size,
        "vocabulary_size": 400,
        "special": {"end_of_text": 0, "pad": None, "unk": None, "cls": None, "sep": None, "mask": None},
        "kind": "byte_level_bpe",
    }


def test_one_with_roberta_s_special_tokens_learns_the_same_merges(tmp_path, write_documents, prose) -> None:
    documents = [write_documents("a.jsonl", prose)]
    train_tokenizer("byte_level_bpe", documents, 400, 10**9, tmp_path / "plain.json")
    train_tokenizer("roberta_byte_level_bpe", documents, 404, 10**9, tmp_path / "special.json")
    plain, special = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("plain", "special"))
    assert special["model"]["merges"] == plain["model"]["merges"]
    loaded = load_tokenizer(tmp_path / "special.json")
    assert loaded.special == SpecialIds(end_of_text=2, pad=1, unk=3, cls=0, sep=2, mask=4)
    assert loaded.kind == "byte_level_bpe"
    ids = loaded.tokenizer.encode("never <mask>").ids
    assert (ids[0], ids[-1]) == (0, 2)
    assert 4 not in ids


def test_merges_come_in_order_of_frequency(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["lo lo lo lo lo low low ne ne ne"])
    train_tokenizer("byte_level_bpe", [documents], 260, 10**9, tmp_path / "t.json")
    merges = json.loads((tmp_path / "t.json").read_text())["model"]["merges"]
    assert merges == [["l", "o"], ["Ġ", "lo"], ["n", "e"]]  # 7, 6 and 3 times; "Ġ ne" is 3 times too, but of higher ids


def test_a_text_too_small_for_the_vocabulary_says_how_many_tokens_it_gives(tmp_path, write_documents) -> None:
    documents = write_documents("small.jsonl", ["ab ab ab"])
    with pytest.raises(RelmError, match=r"small\.jsonl: expected a vocabulary of 300, but 8 bytes .* give (\d+); set") as error:
        train_tokenizer("byte_level_bpe", [documents], 300, 10**9, tmp_path / "t.json")
    possible = int(re.search(r"give (\d+);", str(error.value))[1])
    assert not (tmp_path / "t.json").exists()
    train_tokenizer("byte_level_bpe", [documents], possible, 10**9, tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").vocabulary_size == possible


def test_only_the_first_bytes_are_read_across_files(tmp_path, write_documents) -> None:
    files = [write_documents("a.jsonl", ["éé", "ab"]), write_documents("b.jsonl", ["cdef", "never"])]
    assert list(read_first_texts(files, 8)) == ["éé", "ab", "cd"]
    assert list(read_first_texts(files, 6)) == ["éé", "ab"]
    assert list(read_first_texts(files, 3)) == ["é"]
    train_tokenizer("byte_level_bpe", [write_documents("c.jsonl", ["low low", "zz zz zz zz"])], 258, 7, tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["model"]["merges"] == [["l", "o"]]


@pytest.fixture
def gpt2_files(tmp_path: Path) -> dict[str, Path]:
    """Write GPT-2's two files in small: bytes first, merges next, the end of text last."""
    merges = [("l", "o"), ("lo", "w"), ("Ġ", "low")]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges), "<|endoftext|>"]
    files = {"vocab.json": tmp_path / "encoder.json", "merges.txt": tmp_path / "vocab.bpe"}
    files["vocab.json"].write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    files["merges.txt"].write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return files


def test_gpt2s_files_become_one_with_the_same_ids(tmp_path, gpt2_files) -> None:
    message = import_tokenizer("gpt2_bpe", gpt2_files, tmp_path / "out" / "tokenizer.json")
    assert message == "imported a gpt2_bpe tokenizer of 260 tokens; end of text 259"
    loaded = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    vocabulary = json.loads(gpt2_files["vocab.json"].read_text())
    assert loaded.tokenizer.get_vocab() == vocabulary
    assert loaded.tokenizer.encode("low lower").ids == [257, 258, vocabulary["e"], vocabulary["r"]]
    assert read_sidecar(tmp_path / "out" / "tokenizer.json")["kind"] == "gpt2_bpe"


def test_a_tokenizer_json_is_kept_byte_for_byte(tmp_path, tokenizer) -> None:
    published = tmp_path / "published.json"
    padded = Tokenizer.from_file(str(tokenizer))
    padded.enable_padding(length=64)
    padded.enable_truncation(8)
    published.write_text(padded.to_str())
    import_tokenizer("tokenizers_json", {"tokenizer.json": published}, tmp_path / "kept.json")
    assert (tmp_path / "kept.json").read_bytes() == published.read_bytes()
    assert len(load_tokenizer(tmp_path / "kept.json").tokenizer.encode("ka " * 30).ids) > 8


def test_end_of_text_in_a_document_is_spelled_out(tokenizer) -> None:
    loaded = load_tokenizer(tokenizer)
    ids = loaded.tokenizer.encode("a<|endoftext|>b").ids
    assert loaded.special.end_of_text not in ids
    assert loaded.tokenizer.decode(ids) == "a<|endoftext|>b"


def changed_tokenizer(path: Path, change) -> Path:
    content = json.loads(path.read_text())
    change(content)
    changed = path.with_name("changed.json")
    changed.write_text(json.dumps(content))
    return changed


def test_an_end_of_text_that_is_lacking_or_no_special_token_is_refused_when_it_is_required(tokenizer) -> None:
    def without(content) -> None:
        content["added_tokens"] = []
        content["model"]["vocab"]["<end>"] = content["model"]["vocab"].pop("<|endoftext|>")

    def ordinary(content) -> None:
        content["added_tokens"][0]["special"] = False

    for change in (without, ordinary):
        loaded = load_tokenizer(changed_tokenizer(tokenizer, change))
        assert loaded.special.end_of_text is None
        with pytest.raises(RelmError, match=r"changed\.json: lacks the special token <\|endoftext\|> or </s> or <s>, which"):
            _ = loaded.required("end_of_text")
        with pytest.raises(RelmError, match=r"lacks the special token \[MASK\] or <mask>"):
            loaded.required("mask")


def test_files_that_are_no_tokenizer_are_refused_by_name(tmp_path, gpt2_files) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"model": 3}')
    with pytest.raises(RelmError, match=r"wrong\.json: not a tokenizer\.json"):
        import_tokenizer("tokenizers_json", {"tokenizer.json": wrong}, tmp_path / "t.json")
    gpt2_files["merges.txt"].write_text("#version: 0.2\nnot in vocabulary\n")
    with pytest.raises(RelmError, match=r"encoder\.json, vocab\.bpe: not the vocabulary and merges"):
        import_tokenizer("gpt2_bpe", gpt2_files, tmp_path / "t.json")
    with pytest.raises(RelmError, match=r"absent\.json: no such file"):
        load_tokenizer(tmp_path / "absent.json")
    assert not (tmp_path / "t.json").exists()


# --- trained here: WordPiece and characters ----------------------------------------------------------------------------------


def test_a_trained_wordpiece_has_berts_special_tokens_first_and_the_most_frequent_pieces(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["AB áb abab abab aab aab bba bba"])
    message = train_tokenizer("wordpiece", [documents], 13, 10**9, tmp_path / "t.json", lower_case=True)
    assert message.startswith("trained a WordPiece of 13 tokens on 32 bytes of 1 documents")
    loaded = load_tokenizer(tmp_path / "t.json")
    vocabulary = loaded.tokenizer.get_vocab()
    assert asdict(loaded.special) == {"end_of_text": None, "pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert (loaded.kind, loaded.vocabulary_size) == ("wordpiece", 13)
    # "##a ##b", "##b ##a" and "a ##b" are all 4 times; of equals the lowest ids come first.
    assert sorted(vocabulary, key=vocabulary.__getitem__)[5:] == ["##a", "##b", "a", "b", "##ab", "ab", "##ba", "aab"]
    ids = loaded.tokenizer.encode("ÁBa [MASK]", add_special_tokens=False).ids
    assert ids[:2] == [vocabulary["ab"], vocabulary["##a"]]
    assert 4 not in ids


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Éa Éa Éa Éaé Éaé aé aé éé éé", {"É", "é", "a", "##a", "##é", "##É", "Éa", "aé"}),
        ("abab abab aab aab bba bba cdefgh", {*"abcd", "##a", "##b", "##c", "##d"}),
    ],
    ids=["letters keep case and accents", "the rarest characters are left out"],
)
def test_a_small_cased_wordpiece_has_these_pieces(tmp_path, write_documents, text, pieces) -> None:
    train_tokenizer("wordpiece", [write_documents("a.jsonl", [text])], 13, 10**9, tmp_path / "t.json")
    vocabulary = load_tokenizer(tmp_path / "t.json").tokenizer.get_vocab()
    assert vocabulary.keys() - {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} == pieces


def test_characters_are_those_of_the_text_in_order_and_all_others_are_unknown(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["ba\n", "ză a"])
    message = train_tokenizer("characters", [documents], None, 10**9, tmp_path / "t.json")
    assert message.startswith("trained a character vocabulary of 8 tokens on 8 bytes of 2 documents")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert loaded.tokenizer.encode("ab\nză x<").ids == [4, 5, 2, 6, 7, 3, 1, 1]
    assert (loaded.kind, loaded.special.end_of_text, loaded.special.unk) == ("characters", 0, 1)
    assert loaded.tokenizer.decode([4, 5, 2, 6, 7]) == "ab\nză"


def test_characters_without_special_tokens_are_the_texts_own(tmp_path, write_documents) -> None:
    """nanoGPT numbers them so: from 0, in the order of their code points."""
    documents = write_documents("a.jsonl", ["ba\n", "ză a"])
    train_tokenizer("characters", [documents], None, 10**9, tmp_path / "t.json", special_tokens=False)
    loaded = load_tokenizer(tmp_path / "t.json")
    assert (loaded.vocabulary_size, loaded.kind, loaded.special) == (6, "characters", SpecialIds())
    assert TextEncoder(loaded.tokenizer).encoded(["ab\nză "]).tokens.tolist() == [2, 3, 0, 4, 5, 1]
    assert ids_by_library(loaded.tokenizer, "ab\nză ").tolist() == [2, 3, 0, 4, 5, 1]
    assert loaded.tokenizer.decode([2, 3, 0, 4, 5]) == "ab\nză"
    with pytest.raises(RelmError, match=r"the tokenizer has no token for the character 'x'"):
        TextEncoder(loaded.tokenizer).encoded(["a", "abxa"])


# --- published: RoBERTa, BERT, T5 --------------------------------------------------------------------------------------------


def imported(kind: str, files: dict[str, Path], folder: Path) -> LoadedTokenizer:
    import_tokenizer(kind, files, folder / "tokenizer.json")
    return load_tokenizer(folder / "tokenizer.json")


def test_robertas_ids_are_the_published_ones(published, shared_data) -> None:
    loaded = load_tokenizer(published("roberta"))
    assert (loaded.kind, loaded.vocabulary_size) == ("byte_level_bpe", 50_265)
    assert loaded.special == SpecialIds(end_of_text=2, pad=1, unk=3, cls=0, sep=2, mask=50_264)
    # "Hello world" with its special tokens, as in the documentation of transformers.
    assert loaded.tokenizer.encode("Hello world").ids == [0, 31414, 232, 2]
    assert not {0, 1, 2, 3, 50_264} & set(loaded.tokenizer.encode("<s><mask></s> <pad>", add_special_tokens=False).ids)
    # fairseq's dictionary lists GPT-2's ids by frequency, from id 4 on.
    original = load_tokenizer(published("gpt2"))
    dictionary = (shared_data / "tokenizers" / "roberta-fairseq" / "dict.txt").read_text()
    order = [line.split()[0] for line in dictionary.splitlines()]
    text = "The Tower of Babel, 1563: naïve façade ±5 €\n\n  'tis"
    wanted = [order.index(str(number)) + 4 for number in original.tokenizer.encode(text).ids]
    assert loaded.tokenizer.encode(text, add_special_tokens=False).ids == wanted


def test_berts_ids_are_the_published_ones(published, shared_data) -> None:
    loaded = load_tokenizer(published("bert"))
    assert (loaded.kind, loaded.vocabulary_size) == ("wordpiece", 30_522)
    assert loaded.special == SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)
    assert loaded.tokenizer.encode("Hello, world!").ids == [101, 7592, 1010, 2088, 999, 102]
    peer = BertTokenizer(str(shared_data / "tokenizers" / "bert-base-uncased" / "vocab.txt"))
    for text in ("Décembre 中文 won't ##s [MASK] ½ naïve", "x" * 101, "İstanbul ﬁne \u0301e\tend\x00\ufffd"):
        assert loaded.tokenizer.encode(text, add_special_tokens=False).tokens == peer.tokenize(text, split_special_tokens=True)


def test_a_cased_wordpiece_keeps_case_and_accents(tmp_path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nÉté\nete\n", encoding="utf-8")
    cased = imported("bert_wordpiece_cased", {"vocab.txt": vocabulary}, tmp_path / "cased")
    uncased = imported("bert_wordpiece_uncased", {"vocab.txt": vocabulary}, tmp_path / "uncased")
    assert cased.tokenizer.encode("Été", add_special_tokens=False).ids == [5]
    assert uncased.tokenizer.encode("Été", add_special_tokens=False).ids == [6]


@pytest.mark.parametrize(("name", "size"), [("t5", 32_100), ("mt5", 250_100)])
def test_t5s_ids_are_those_of_sentencepiece(published, shared_data, name, size) -> None:
    loaded = load_tokenizer(published(name))
    assert (loaded.kind, loaded.vocabulary_size) == ("sentencepiece", size)
    assert loaded.special == SpecialIds(end_of_text=1, pad=0, unk=2, sep=1)
    assert loaded.tokenizer.token_to_id("<extra_id_0>" if name == "t5" else "\u2581<extra_id_0>") == size - 1
    model = shared_data / "tokenizers" / name / "spiece.model"
    peer = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for file in ("romanian/ud-ro-rrt.txt.xz", "romanian/ro-sts-train.ro.txt.xz", "wikitext-2-raw/wiki.valid.raw.xz"):
        with lzma.open(shared_data / file, "rt", encoding="utf-8") as lines:
            texts = list(itertools.islice(lines, 300))
        found = [row.ids for row in loaded.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        assert found == peer.encode(texts)
    for text in (
        "  two   spaces\t\n",
        "",
        " ",
        "ﬁne ½ ㎏ ｆｕｌｌ",
        "s\u0326i t\u0327",
        "A\u00a0b\u200bc\x00d",
        "☃中文🙂",
        "------ ---------- ''''",
        "x☃☃yuxxxxx",
    ):
        assert loaded.tokenizer.encode(text, add_special_tokens=False).ids == peer.encode(text)


def test_names_of_special_pieces_in_a_text_are_spelled_out(published) -> None:
    loaded = load_tokenizer(published("mt5"))
    text = "</s> <pad> a<unk> <extra_id_0> <extra_id_99><0x41>"
    ids = loaded.tokenizer.encode(text, add_special_tokens=False).ids
    assert max(ids) < 250_000
    assert min(ids) >= 3 + 256
    assert loaded.tokenizer.decode(ids) == text


def test_vocabularies_that_are_not_what_they_should_be_are_refused_by_name(tmp_path, gpt2_files) -> None:
    output = tmp_path / "t.json"
    vocabulary = tmp_path / "vocab.txt"
    for content, message in (
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"vocab\.txt: lacks BERT's special tokens \[MASK\]"),
        ("[PAD]\na\na\n", r"vocab\.txt: expected one token per line, each once, found a repeated one"),
        ("[PAD]\n\na\n", r"vocab\.txt: .* or an empty line"),
    ):
        vocabulary.write_text(content)
        with pytest.raises(RelmError, match=message):
            import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": vocabulary}, output)
    with pytest.raises(RelmError, match=r"encoder\.json: lacks the special tokens <s>, <pad>"):
        import_tokenizer("roberta_bpe", gpt2_files, output)
    model = tmp_path / "spiece.model"
    model.write_bytes(b"\xff" * 100)
    with pytest.raises(RelmError, match=r"spiece\.model: not a sentencepiece model"):
        import_tokenizer("t5_sentencepiece", {"spiece.model": model}, output)
    model.write_bytes(b"")
    with pytest.raises(RelmError, match=r"spiece\.model: expected a Unigram model with a table of characters"):
        import_tokenizer("t5_sentencepiece", {"spiece.model": model}, output)
    assert not output.exists()


def test_documents_that_changed_since_extraction_are_refused(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["low low low"])
    documents.write_bytes(documents.read_bytes().replace(b"low low", b"lax lax"))
    with pytest.raises(RelmError, match="changed since it was made"):
        train_tokenizer("byte_level_bpe", [documents], 258, 100, tmp_path / "t.json")


def test_a_tokenizer_that_changed_since_it_was_made_is_refused(tokenizer) -> None:
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    with pytest.raises(RelmError, match="its sidecar says"):
        load_tokenizer(tokenizer)
