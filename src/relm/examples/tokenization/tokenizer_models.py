"""Build each kind of tokenizer, with an empty or a published vocabulary.

Byte-level BPE is GPT-2's (Radford et al. 2019, section 2.2): GPT-2's pattern splits text, each byte becomes a character, and
merges are learnt over these; RoBERTa's is the same with other ids. WordPiece is BERT's (Devlin et al. 2019, section 3): text is
cleaned, split at white space and punctuation, and each word is covered by the longest pieces from its start. Unigram is
sentencepiece's (Kudo and Richardson 2018), as in T5 and mT5.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from relm.errors import RelmError

END_OF_TEXT, UNKNOWN = "<|endoftext|>", "<unk>"
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CONTINUING = "##"
SPACE = "\u2581"
ANY_CHARACTER = r"[\s\S]"
# Words of more characters become [UNK], as in google-research/bert, tokenization.py.
LONGEST_WORD = 100
# Number of T5's sentinels, which replace masked spans; mT5's file has them, T5's leaves them to the program.
SENTINELS = 100
# Scores are 32-bit floats; the library's penalty for an unknown character is fixed.
WHOLE, UNKNOWN_PENALTY = 2.0**24, 10.0
# sentencepiece never matches these in a text, but the library's Unigram does; a split inside them prevents that.
_NAMES_OF_SPECIAL_PIECES = Regex(r"<(?=(?:pad|/s|unk|0x[0-9A-F]{2}|extra_id_[0-9]+)>)")


def byte_level_bpe(model: models.BPE | None = None) -> Tokenizer:
    """Return GPT-2's tokenizer around a model; None: an empty one to train."""
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def wordpiece(vocabulary: Mapping[str, int], lower_case: bool) -> Tokenizer:
    """Return BERT's tokenizer around a vocabulary with its five special tokens.

    With `lower_case` letters lose their case and their accents, as in the uncased models.
    """
    model = models.WordPiece(dict(vocabulary), unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUING)
    if all(token in vocabulary for token in BERT_SPECIAL):
        tokenizer.add_special_tokens(list(BERT_SPECIAL))
        cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    return tokenizer


def characters(found: Sequence[str], special: bool = True) -> Tokenizer:
    """Return a tokenizer with `<|endoftext|>`, `<unk>` for unknown characters, and a token for each character found.

    Without `special` it lacks these two, so it cannot encode unknown characters.
    """
    added = [END_OF_TEXT, UNKNOWN] if special else []
    vocabulary = {token: number for number, token in enumerate([*added, *found])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHARACTER), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(added)
    return tokenizer


def gpt2_bpe(vocabulary: Path, merges: Path) -> Tokenizer:
    """Return GPT-2's tokenizer from its two files."""
    tokenizer = byte_level_bpe(_bpe_of_files(vocabulary, merges))
    if tokenizer.token_to_id(END_OF_TEXT) is not None:  # else this would add a new token; its lack is reported later
        tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def roberta_bpe(vocabulary: Path, merges: Path) -> Tokenizer:
    """Return RoBERTa's tokenizer from its two files; `<|endoftext|>` is in them by accident, and not a special token."""
    tokenizer = byte_level_bpe(_bpe_of_files(vocabulary, merges))
    _require(ROBERTA_SPECIAL, tokenizer, vocabulary)
    return with_roberta_special(tokenizer)


def with_roberta_special(tokenizer: Tokenizer) -> Tokenizer:
    """Make a tokenizer put RoBERTa's special tokens, which its vocabulary has, around a text, and return it."""
    tokenizer.add_special_tokens(list(ROBERTA_SPECIAL))
    end, begin = (("</s>", _id(tokenizer, "</s>")), ("<s>", _id(tokenizer, "<s>")))
    tokenizer.post_processor = processors.RobertaProcessing(end, begin, trim_offsets=True, add_prefix_space=False)
    return tokenizer


def bert_wordpiece(vocabulary: Path, lower_case: bool) -> Tokenizer:
    """Return BERT's tokenizer from its file, one token per line."""
    tokens = _read_utf8(vocabulary).split("\n")
    if tokens[-1] == "":
        tokens.pop()
    numbered = {token.removesuffix("\r"): number for number, token in enumerate(tokens)}
    if len(numbered) != len(tokens) or "" in numbered:
        raise RelmError(f"{vocabulary}: expected one token per line, each once, found a repeated one or an empty line")
    if missing := [token for token in BERT_SPECIAL if token not in numbered]:
        raise RelmError(f"{vocabulary}: lacks BERT's special tokens {', '.join(missing)}; give a vocabulary of BERT")
    return wordpiece(numbered, lower_case)


def t5_sentencepiece(path: Path) -> Tokenizer:
    """Return T5's or mT5's tokenizer from its sentencepiece model, with T5's 100 sentinels at the end.

    The ids are sentencepiece's, with three exceptions that are rare in running text. The names of special pieces are spelled
    out in other pieces. A mark after a character that the table replaces, such as an accent after ½, is lost. Of two equally
    good segmentations of a word, such as a row of dashes, sentencepiece takes the one that rounding a 32-bit sum over the whole
    sentence favours; the library always takes the same one.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception:  # the library's own exception, whose module has no types
        raise RelmError(f"{path}: not a sentencepiece model; download it again") from None
    trained, normalised = proto.trainer_spec, proto.normalizer_spec
    if trained.model_type != trained.UNIGRAM or not normalised.precompiled_charsmap:
        raise RelmError(f"{path}: expected a Unigram model with a table of characters, such as T5's spiece.model")
    tokenizer = Tokenizer(models.Unigram(_pieces(proto), unk_id=trained.unk_id, byte_fallback=trained.byte_fallback))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(normalised.precompiled_charsmap),
            normalizers.Strip(left=True, right=True),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
            pre_tokenizers.Split(_NAMES_OF_SPECIAL_PIECES, "merged_with_previous"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    _require(("<pad>", "</s>", "<unk>"), tokenizer, path)
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    if tokenizer.token_to_id(f"{SPACE}<extra_id_0>") is None:
        tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(SENTINELS))])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", _id(tokenizer, "</s>"))]
    )
    return tokenizer


def _pieces(proto: Any) -> list[tuple[str, float]]:
    """Return the pieces of a sentencepiece model with their scores, as whole numbers.

    The library reads decimal fractions with an error in the last bit, which would decide between equally good segmentations of
    a word, such as a row of dashes; it reads whole numbers exactly. An unknown character scores 10 less than the lowest piece;
    special pieces, which never occur in text, get a score that makes this so.
    """
    normal = {number for number, piece in enumerate(proto.pieces) if piece.type == piece.NORMAL}
    unknown = (min(proto.pieces[number].score for number in normal) - UNKNOWN_PENALTY) * WHOLE
    return [
        (piece.piece, piece.score * WHOLE if number in normal else unknown + UNKNOWN_PENALTY)
        for number, piece in enumerate(proto.pieces)
    ]


def _bpe_of_files(vocabulary: Path, merges: Path) -> models.BPE:
    try:
        return models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises bare exceptions
        raise RelmError(
            f"{vocabulary}, {merges.name}: not the vocabulary and merges of a BPE ({error}); give both files again"
        ) from None


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def _require(tokens: Sequence[str], tokenizer: Tokenizer, path: Path) -> None:
    if missing := [token for token in tokens if tokenizer.token_to_id(token) is None]:
        raise RelmError(f"{path}: lacks the special tokens {', '.join(missing)}; give the file of a published tokenizer")


def _read_utf8(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise RelmError(f"{path}: byte {error.start}: not valid UTF-8; give the published file") from None


def kind_of(parts: Mapping[str, Any]) -> str:
    """Return the kind of a `tokenizer.json`: byte_level_bpe, wordpiece, sentencepiece, characters, or other.

    In all kinds except other, a token never spans a space that follows a letter or digit.
    """
    cutter = parts["pre_tokenizer"] or {}
    first = (cutter.get("pretokenizers") or [cutter])[0]
    kind, option, value = _KINDS.get((parts["model"].get("type"), first.get("type")), ("other", "", None))
    return kind if first.get(option) == value else "other"


# Model and (first) pre-tokenizer -> kind, and an option of the pre-tokenizer with its required value.
_KINDS: dict[tuple[str, str], tuple[str, str, object]] = {
    ("BPE", "ByteLevel"): ("byte_level_bpe", "use_regex", True),
    ("WordPiece", "BertPreTokenizer"): ("wordpiece", "", None),
    ("Unigram", "Metaspace"): ("sentencepiece", "split", True),
    ("BPE", "Metaspace"): ("sentencepiece", "prepend_scheme", "always"),
    ("WordLevel", "Split"): ("characters", "pattern", {"Regex": ANY_CHARACTER}),
}
