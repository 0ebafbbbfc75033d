"""The tokenizer of a released model of llama2.c gives the ids of sentencepiece itself."""

from pathlib import Path

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from relm.errors import RelmError
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, import_tokenizer, load_tokenizer
from trained_llama import pieces

TEXTS = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.",
    'Tom said, "I\u2019m 3 years old!"\n\n"Caf\u00e9" cost 10 \u20ac\u2026 \u263a',
    "two  spaces,   three; and a line\n end \n",
    "  at both ends  ",
    "<s> </s> <unk> <0x41> are text",
    "aaaaaa hehehehe 0000 \u4f60\u597d\t\U0001f600",
    "",
]


@pytest.fixture(scope="module")
def file(shared_data: Path) -> Path:
    path = shared_data / "models" / "stories260K" / "tok512.bin"
    if not path.exists():
        pytest.skip("stories260K is not among the real data of ../shared/data")
    return path


@pytest.fixture(scope="module")
def imported(file: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    output = tmp_path_factory.mktemp("imported") / "tokenizer.json"
    sentence = import_tokenizer("llama2_c", {"tokenizer.bin": file}, output)
    assert sentence == "imported a llama2_c tokenizer of 512 tokens; end of text 1, unk 0, cls 1"
    return load_tokenizer(output)


@pytest.fixture(scope="module")
def original(shared_data: Path) -> sentencepiece.SentencePieceProcessor:
    """Return sentencepiece's own BPE of the pieces, with the options that llama2.c's tinystories.py trains one with."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    for number, text in enumerate(pieces(shared_data)):
        kind = kinds.UNKNOWN if number == 0 else kinds.CONTROL if number < 3 else kinds.BYTE if number < 259 else kinds.NORMAL
        name = text.decode().strip("\n") if number < 3 else text.decode().replace(" ", "\u2581")
        proto.pieces.add(piece=name, score=0.0 if number < 259 else 259 - number, type=kind)
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_sentencepiece(
    imported: LoadedTokenizer, original: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    ids = imported.tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == original.encode(text)
    assert imported.tokenizer.decode(ids) == original.decode(ids)


def test_ids_of_a_long_text_are_those_of_sentencepiece(
    imported: LoadedTokenizer, original: sentencepiece.SentencePieceProcessor
) -> None:
    text = (Path(__file__).parents[1] / "harness_tasks.py").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert len(lines) > 50
    for line in lines:
        assert imported.tokenizer.encode(line, add_special_tokens=False).ids == original.encode(line), line


def test_a_text_begins_with_its_token(imported: LoadedTokenizer) -> None:
    assert imported.kind == "sentencepiece"
    assert imported.tokenizer.encode("Lily").ids[:2] == [1, imported.tokenizer.encode("Lily", add_special_tokens=False).ids[0]]
    assert imported.special.end_of_text == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "not the tokenizer of a model of llama2.c"),
        (lambda content: content[:300], "not the tokenizer of a model of llama2.c"),
        (lambda content: content[:4] + content[17:], "expected <unk>, <s>, </s>, the 256 bytes"),
        (lambda content: b"", "expected <unk>, <s>, </s>, the 256 bytes"),
    ],
    ids=["cut", "cut within", "without unk", "empty"],
)
def test_what_is_no_such_file_is_refused(file: Path, tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(change(file.read_bytes()))
    with pytest.raises(RelmError, match=message):
        import_tokenizer("llama2_c", {"tokenizer.bin": path}, tmp_path / "tokenizer.json")
