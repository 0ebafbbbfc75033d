import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from relm.artifact import read_json, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.examples.documents import first_texts
from relm.examples.tokenizers import import_tokenizer, load_tokenizer, train_tokenizer

TRAIN = """
import sys
from pathlib import Path
from relm.examples.tokenizers import train_tokenizer
train_tokenizer([Path(sys.argv[1])], 700, 10**9, Path(sys.argv[2]))
"""


@pytest.mark.parametrize(
    "environment",
    [{"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "2"}, {"RAYON_NUM_THREADS": "5"}, {"TOKENIZERS_PARALLELISM": "false"}],
    ids=["one thread", "two threads", "five threads", "no threads"],
)
def test_training_gives_the_same_bytes_in_every_process(tmp_path, write_documents, prose, environment) -> None:
    documents = write_documents("a.jsonl", prose)
    train_tokenizer([documents], 700, 10**9, tmp_path / "here.json")
    command = [sys.executable, "-c", TRAIN, str(documents), str(tmp_path / "there.json")]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()


def test_ties_between_pairs_are_decided_the_same_way_in_every_process(tmp_path, write_documents) -> None:
    # Of 26 letters each pair occurs as often as its mirror image: nearly every merge is a tie.
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = [" ".join(a + b + a for a in letters for b in letters)] * 2
    documents = write_documents("ties.jsonl", texts)
    hashes = set()
    for attempt in range(3):
        output = tmp_path / f"{attempt}.json"
        subprocess.run([sys.executable, "-c", TRAIN, str(documents), str(output)], check=True)
        hashes.add(sha256_of(output))
    assert len(hashes) == 1


def test_a_trained_tokenizer_has_every_byte_and_the_wanted_size(tokenizer: Path) -> None:
    loaded = load_tokenizer(tokenizer)
    assert loaded.vocabulary_size == len(loaded.tokenizer.get_vocab()) == 400
    assert loaded.end_of_text_id == 0
    assert {loaded.tokenizer.token_to_id(c) for c in pre_tokenizers.ByteLevel.alphabet()} == set(range(1, 257))
    for text in ("никогда 中文 \x00\x7f🙂", "  two  spaces\n"):
        assert loaded.tokenizer.decode(loaded.tokenizer.encode(text).ids) == text
    assert read_json(sidecar_of(tokenizer)) == {
        "file": "tokenizer.json",
        "sha256": loaded.sha256,
        "size": tokenizer.stat().st_size,
        "vocabulary_size": 400,
        "end_of_text_id": 0,
        "kind": "byte_level_bpe",
    }


def test_merges_come_in_order_of_frequency(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["lo lo lo lo lo low low ne ne ne"])
    train_tokenizer([documents], 260, 10**9, tmp_path / "t.json")
    merges = json.loads((tmp_path / "t.json").read_text())["model"]["merges"]
    assert merges == [["l", "o"], ["Ġ", "lo"], ["n", "e"]]  # 7, 6 and 3 times; "Ġ ne" is 3 times too, but of higher ids


def test_a_text_too_small_for_the_vocabulary_says_how_many_tokens_it_gives(tmp_path, write_documents) -> None:
    documents = write_documents("small.jsonl", ["ab ab ab"])
    with pytest.raises(
        RelmError, match=r"small\.jsonl: a vocabulary of 300 was wanted, but 8 bytes .* only (\d+) tokens"
    ) as error:
        train_tokenizer([documents], 300, 10**9, tmp_path / "t.json")
    possible = int(re.search(r"only (\d+)", str(error.value))[1])
    assert not (tmp_path / "t.json").exists()
    train_tokenizer([documents], possible, 10**9, tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").vocabulary_size == possible


def test_only_the_first_bytes_are_read_across_files(tmp_path, write_documents) -> None:
    files = [write_documents("a.jsonl", ["éé", "ab"]), write_documents("b.jsonl", ["cdef", "never"])]
    assert list(first_texts(files, 8)) == ["éé", "ab", "cd"]
    assert list(first_texts(files, 6)) == ["éé", "ab"]
    assert list(first_texts(files, 3)) == ["é"]
    train_tokenizer([write_documents("c.jsonl", ["low low", "zz zz zz zz"])], 258, 7, tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["model"]["merges"] == [["l", "o"]]


def test_documents_that_changed_since_extraction_are_refused(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["low low low"])
    documents.write_bytes(documents.read_bytes().replace(b"low low", b"lax lax"))
    with pytest.raises(RelmError, match="changed since it was made"):
        train_tokenizer([documents], 258, 100, tmp_path / "t.json")


@pytest.fixture
def gpt2_files(tmp_path: Path) -> dict[str, Path]:
    """GPT-2's two files in small: bytes first, merges next, the end of text last."""
    merges = [("l", "o"), ("lo", "w"), ("Ġ", "low")]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges), "<|endoftext|>"]
    files = {"vocab.json": tmp_path / "encoder.json", "merges.txt": tmp_path / "vocab.bpe"}
    files["vocab.json"].write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    files["merges.txt"].write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return files


def test_gpt2s_files_become_one_with_the_same_ids(tmp_path, gpt2_files) -> None:
    said = import_tokenizer("gpt2_bpe", gpt2_files, tmp_path / "out" / "tokenizer.json")
    assert said == "imported a gpt2_bpe tokenizer of 260 tokens, <|endoftext|> is 259"
    loaded = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    vocabulary = json.loads(gpt2_files["vocab.json"].read_text())
    assert loaded.tokenizer.get_vocab() == vocabulary
    assert loaded.tokenizer.encode("low lower").ids == [257, 258, vocabulary["e"], vocabulary["r"]]
    assert read_json(sidecar_of(tmp_path / "out" / "tokenizer.json"))["kind"] == "gpt2_bpe"


def test_gpt2_encodes_wikitext_2_to_the_published_number_of_tokens(tmp_path, shared_data) -> None:
    folder = shared_data / "tokenizers" / "gpt2"
    output = tmp_path / "tokenizer.json"
    import_tokenizer("gpt2_bpe", {"vocab.json": folder / "encoder.json", "merges.txt": folder / "vocab.bpe"}, output)
    loaded = load_tokenizer(output)
    with lzma.open(shared_data / "wikitext-2-raw" / "wiki.test.raw.xz", "rt", encoding="utf-8") as file:
        rows = file.read().split("\n")
    # The rows of the published data set: every line with its end, empty ones as "".
    text = "\n\n".join("" if row == " " else f"{row}\n" for row in rows[:-1])
    assert len(loaded.tokenizer.encode(text, add_special_tokens=False).ids) == 287_644
    assert (loaded.vocabulary_size, loaded.end_of_text_id) == (50_257, 50_256)


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
    assert loaded.end_of_text_id not in ids
    assert loaded.tokenizer.decode(ids) == "a<|endoftext|>b"


def changed_tokenizer(path: Path, change) -> Path:
    content = json.loads(path.read_text())
    change(content)
    changed = path.with_name("changed.json")
    changed.write_text(json.dumps(content))
    return changed


def test_a_tokenizer_without_end_of_text_is_refused(tokenizer) -> None:
    def without(content) -> None:
        content["added_tokens"] = []
        content["model"]["vocab"]["<end>"] = content["model"]["vocab"].pop("<|endoftext|>")

    with pytest.raises(RelmError, match=r"changed\.json: has no token <\|endoftext\|>"):
        load_tokenizer(changed_tokenizer(tokenizer, without))


def test_an_end_of_text_that_is_no_special_token_is_refused(tokenizer) -> None:
    def ordinary(content) -> None:
        content["added_tokens"][0]["special"] = False

    with pytest.raises(RelmError, match="is an ordinary token"):
        load_tokenizer(changed_tokenizer(tokenizer, ordinary))


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


def test_a_tokenizer_that_changed_since_it_was_made_is_refused(tokenizer) -> None:
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    with pytest.raises(RelmError, match="its sidecar says"):
        load_tokenizer(tokenizer)
