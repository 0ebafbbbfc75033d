"""Train tokenizers, or import them from published files, as one `tokenizer.json` of the `tokenizers` library.

A trained byte-level BPE has `<|endoftext|>` as id 0, the 256 bytes as ids 1 to 256, then the merges. With RoBERTa's special
tokens, these come first; a trained WordPiece begins with BERT's. GPT-2's published one has `<|endoftext|>` last, at 50256.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from tokenizers import Tokenizer, normalizers, pre_tokenizers, trainers

from relm.artifact import atomic_file, checked_sidecar, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.documents import read_first_texts
from relm.examples.tokenization import tokenizer_models as build
from relm.examples.tokenization.llama2_c_tokenizer import llama2_c

# The original trainers of byte-level BPE have the same bound.
MINIMUM_FREQUENCY = 2
# WordPiece keeps the most frequent characters; those of all scripts would fill a vocabulary twice over.
LARGEST_ALPHABET = 1000
# Kind of tokenizer that is trained here -> its name in messages.
TRAINED = {
    "byte_level_bpe": "byte-level BPE",
    "roberta_byte_level_bpe": "byte-level BPE with RoBERTa's special tokens",
    "wordpiece": "WordPiece",
    "characters": "character vocabulary",
}


@dataclass(frozen=True)
class SpecialIds:
    """The ids of a tokenizer's special tokens; None for a token that it lacks."""

    end_of_text: int | None = None
    """`<|endoftext|>`, else `</s>`, else `<s>`, which begins a text in tokenizers without an end token."""
    pad: int | None = None
    """`[PAD]` or `<pad>`."""
    unk: int | None = None
    """`[UNK]` or `<unk>`."""
    cls: int | None = None
    """`[CLS]` or `<s>`."""
    sep: int | None = None
    """`[SEP]` or `</s>`."""
    mask: int | None = None
    """`[MASK]` or `<mask>`."""


ENDS_OF_TEXT = (build.END_OF_TEXT, "</s>")
# Field of `SpecialIds` -> candidate tokens; the first that exists is used.
SPECIAL_TOKENS = {
    "end_of_text": (*ENDS_OF_TEXT, "<s>"),
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", build.UNKNOWN),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer with its facts."""

    tokenizer: Tokenizer
    """The tokenizer; it encodes a special token's name inside a document as text, never as the token."""
    vocabulary_size: int
    """One more than the highest id."""
    special: SpecialIds
    sha256: str
    """sha256 of `tokenizer.json`."""
    kind: str
    """byte_level_bpe, wordpiece, sentencepiece, characters, or other."""
    path: Path = Path("tokenizer.json")
    """Path of the file, for messages."""

    def required(self, name: str) -> int:
        """Return the id of a special token, by its field in `SpecialIds`; raise RelmError if the tokenizer lacks it."""
        found = getattr(self.special, name)
        if found is None:
            tokens = " or ".join(SPECIAL_TOKENS[name])
            raise RelmError(f"{self.path}: lacks the special token {tokens}, which these examples need; use another tokenizer")
        return int(found)

    def require_made(self, path: Path, sha256: str | None) -> None:
        """Raise RelmError if a file of examples records another tokenizer; None: it does not record one."""
        if sha256 not in (None, self.sha256):
            raise RelmError(
                f"{self.path}: sha256 is {self.sha256}, but {path} was made with a tokenizer of sha256 {sha256}; give "
                "that tokenizer"
            )


def train_tokenizer(
    kind: str,
    documents: list[Path],
    vocabulary_size: int | None,
    training_bytes: int,
    output: Path,
    lower_case: bool = False,
    special_tokens: bool = True,
) -> str:
    """Train a tokenizer on the first `training_bytes` bytes of text of the documents files, in order; return a sentence.

    The same text gives the same bytes for any number of threads: counts are summed, and ids that follow from the text decide
    ties. `kind` is a key of `TRAINED`, `vocabulary_size` the size with special tokens (None for characters: the text decides
    it). With `lower_case` a WordPiece's letters lose case and accents; with `special_tokens` a character vocabulary has an end
    of text and an unknown token.

    Raises RelmError if a file is absent or damaged, or the text has too few repeated pairs for the vocabulary.
    """
    started = perf_counter()
    for path in documents:
        if sidecar_of(path).exists():
            checked_sidecar(path)
    text = _TrainingText(documents, training_bytes)
    if kind == "byte_level_bpe":
        tokenizer = _train_bpe(text, vocabulary_size or 0, [build.END_OF_TEXT])
    elif kind == "roberta_byte_level_bpe":
        tokenizer = build.with_roberta_special(_train_bpe(text, vocabulary_size or 0, list(build.ROBERTA_SPECIAL)))
    elif kind == "wordpiece":
        tokenizer = _train_wordpiece(text, vocabulary_size or 0, lower_case)
    else:
        tokenizer = build.characters(sorted(_count_characters(text, None)), special_tokens)
    found = tokenizer.get_vocab_size()
    if vocabulary_size not in (None, found):
        raise RelmError(
            f"{documents[0]}: expected a vocabulary of {vocabulary_size}, but {text.bytes:,} bytes of text give {found}; "
            f"set tokenizer.vocabulary_size to {found} or less, or use more documents or training_bytes"
        )
    content = tokenizer.to_str(pretty=True)
    _save(content, _parse(content, output), output, kind)
    seconds = perf_counter() - started
    return (
        f"trained a {TRAINED[kind]} of {found:,} tokens on {text.bytes:,} bytes of {text.documents:,} documents "
        f"in {seconds:.1f} s ({text.bytes / seconds / 1e6:.1f} MB/s)"
    )


def import_tokenizer(kind: str, files: Mapping[str, Path], output: Path) -> str:
    """Write a published tokenizer as one `tokenizer.json` with the same ids, executing nothing in its files; return a sentence.

    Kinds: gpt2_bpe or roberta_bpe (files `vocab.json` and `merges.txt`), bert_wordpiece_uncased or bert_wordpiece_cased
    (`vocab.txt`), t5_sentencepiece (`spiece.model`), llama2_c (`tokenizer.bin`), or tokenizers_json (`tokenizer.json`, kept
    byte for byte).
    """
    importers = {
        "gpt2_bpe": lambda: build.gpt2_bpe(files["vocab.json"], files["merges.txt"]),
        "roberta_bpe": lambda: build.roberta_bpe(files["vocab.json"], files["merges.txt"]),
        "bert_wordpiece_uncased": lambda: build.bert_wordpiece(files["vocab.txt"], lower_case=True),
        "bert_wordpiece_cased": lambda: build.bert_wordpiece(files["vocab.txt"], lower_case=False),
        "t5_sentencepiece": lambda: build.t5_sentencepiece(files["spiece.model"]),
        "llama2_c": lambda: llama2_c(files["tokenizer.bin"]),
    }
    content = _read_utf8(files["tokenizer.json"]) if kind == "tokenizers_json" else importers[kind]().to_str(pretty=True)
    loaded = _parse(content, next(iter(files.values())))
    _save(content, loaded, output, kind)
    special = ", ".join(
        f"{name.replace('_', ' ')} {number}" for name, number in asdict(loaded.special).items() if number is not None
    )
    return f"imported a {kind} tokenizer of {loaded.vocabulary_size:,} tokens; {special or 'no special tokens'}"


def load_tokenizer(path: Path) -> LoadedTokenizer:
    """Load a `tokenizer.json` after comparing it with its sidecar, if it has one."""
    if sidecar_of(path).exists():
        checked_sidecar(path)
    return _parse(_read_utf8(path), path)


def loaded_as(path: Path, sha256: str) -> LoadedTokenizer:
    """Load a `tokenizer.json` in a worker whose parent has loaded it with this sha256."""
    loaded = load_tokenizer(path)
    if loaded.sha256 != sha256:
        raise RelmError(f"{path}: changed while documents were encoded; run the step again")
    return loaded


class _TrainingText:
    """Iterates over the training text, any number of times, and counts what it reads."""

    def __init__(self, documents: list[Path], limit: int) -> None:
        self.sources = documents, limit
        self.bytes = self.documents = 0

    def __iter__(self) -> Iterator[str]:
        self.bytes = self.documents = 0
        for text in read_first_texts(*self.sources):
            self.bytes += len(text.encode())
            self.documents += 1
            yield text


def _train_bpe(text: _TrainingText, vocabulary_size: int, special_tokens: list[str]) -> Tokenizer:
    tokenizer = build.byte_level_bpe()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=MINIMUM_FREQUENCY,
        special_tokens=special_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(text), trainer)
    return tokenizer


def _train_wordpiece(text: _TrainingText, vocabulary_size: int, lower_case: bool) -> Tokenizer:
    """Train a WordPiece, reading the text twice.

    By default the trainer numbers `##a`, `##b` and so on in the order of a hash table, which differs between runs, and breaks
    ties by these numbers; passed as if they were special tokens, they are numbered in order.
    """
    untrained = build.wordpiece({}, lower_case)
    counts = _count_characters(text, untrained.normalizer)
    # Each character takes two ids: as the start of a word, and inside it.
    largest = min(LARGEST_ALPHABET, (vocabulary_size - len(build.BERT_SPECIAL)) // 2)
    alphabet = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:largest])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=MINIMUM_FREQUENCY,
        special_tokens=[*build.BERT_SPECIAL, *(build.CONTINUING + character for character in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=build.CONTINUING,
        show_progress=False,
    )
    untrained.train_from_iterator(iter(text), trainer)
    return build.wordpiece(untrained.get_vocab(), lower_case)


def _count_characters(text: _TrainingText, normalizer: normalizers.Normalizer | None) -> Counter[str]:
    """Return the count of each character in the normalised text; without a normalizer white space counts too."""
    counts: Counter[str] = Counter()
    for piece in text:
        counts.update(piece if normalizer is None else normalizer.normalize_str(piece))
    return Counter({character: n for character, n in counts.items() if normalizer is None or not character.isspace()})


def _read_utf8(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file; make the tokenizer first") from None
    except UnicodeDecodeError:
        raise RelmError(f"{path}: not valid UTF-8; give a tokenizer.json") from None


def _parse(content: str, path: Path) -> LoadedTokenizer:
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare exceptions
        raise RelmError(f"{path}: not a tokenizer.json of the tokenizers library ({error}); give another file") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):  # dropout belongs in its training, never here
        tokenizer.model.dropout = None
    tokenizer.encode_special_tokens = True
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    found = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    special = {field: next((found[name] for name in names if name in found), None) for field, names in SPECIAL_TOKENS.items()}
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return LoadedTokenizer(tokenizer, size, SpecialIds(**special), sha256, build.kind_of(json.loads(content)), path)


def _save(content: str, loaded: LoadedTokenizer, output: Path, kind: str) -> None:
    with atomic_file(output) as file:
        file.write(content.encode())
    write_sidecar(output, vocabulary_size=loaded.vocabulary_size, special=asdict(loaded.special), kind=kind)
