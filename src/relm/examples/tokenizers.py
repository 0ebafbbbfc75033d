"""Tokenizers: byte-level BPE trained here or imported, all kept as one `tokenizer.json` of the `tokenizers` library.

Byte-level BPE is GPT-2's (Radford et al. 2019, section 2.2): text is cut by GPT-2's pattern, each byte becomes a character, and
merges are learnt over these. A trained tokenizer gives `<|endoftext|>` id 0, the 256 bytes ids 1 to 256 and merges the rest;
GPT-2's own has `<|endoftext|>` last, at 50256.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from relm.artifact import atomic_file, checked_sidecar, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.documents import first_texts

END_OF_TEXT = "<|endoftext|>"
# A pair that occurs once is no regularity; the original trainers of byte-level BPE use the same bound.
MINIMUM_FREQUENCY = 2


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer with what its users ask of it."""

    tokenizer: Tokenizer
    """Encodes text as it stands: `<|endoftext|>` inside a document is spelled out, never taken for the end of one."""
    vocabulary_size: int
    """One more than the highest id."""
    end_of_text_id: int
    sha256: str
    """Of `tokenizer.json`."""


def train_tokenizer(documents: list[Path], vocabulary_size: int, training_bytes: int, output: Path) -> str:
    """Train a byte-level BPE on the first `training_bytes` bytes of text of the documents files, in order.

    The same text gives the same bytes, whatever the number of threads: counts are summed, and equal counts are decided by
    the pair's ids.

    Raises:
        RelmError: a file is absent or has faults, or the text has too few repeated pairs for the vocabulary.
    """
    started = perf_counter()
    for path in documents:
        if sidecar_of(path).exists():
            checked_sidecar(path)
    tokenizer = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=MINIMUM_FREQUENCY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = _Measured(documents, training_bytes)
    tokenizer.train_from_iterator(text, trainer)
    found = tokenizer.get_vocab_size()
    if found != vocabulary_size:
        raise RelmError(
            f"{documents[0]}: a vocabulary of {vocabulary_size} was wanted, but {text.bytes:,} bytes of text give only "
            f"{found} tokens; set tokenizer.vocabulary_size to {found} or less, or give it more documents or training_bytes"
        )
    _save(tokenizer.to_str(pretty=True), output, "byte_level_bpe")
    seconds = perf_counter() - started
    return (
        f"trained a byte-level BPE of {vocabulary_size:,} tokens on {text.bytes:,} bytes of {text.documents:,} documents "
        f"in {seconds:.1f} s ({text.bytes / seconds / 1e6:.1f} MB/s)"
    )


def import_tokenizer(kind: str, files: Mapping[str, Path], output: Path) -> str:
    """Write a published tokenizer as one `tokenizer.json` with the same ids.

    Args:
        kind: gpt2_bpe (files `vocab.json` and `merges.txt`) or tokenizers_json (file `tokenizer.json`, kept byte for byte).
        files: name -> path.
        output: the `tokenizer.json` to write.

    Raises:
        RelmError: a file is not what its name says, or the tokenizer lacks `<|endoftext|>`.
    """
    if kind == "gpt2_bpe":
        content = _gpt2_bpe(files["vocab.json"], files["merges.txt"]).to_str(pretty=True)
    elif kind == "tokenizers_json":
        content = _text_of(files["tokenizer.json"])
    else:
        raise RelmError(f"tokenizer: expected gpt2_bpe or tokenizers_json, found {kind!r}")
    loaded = _checked(content, next(iter(files.values())))
    _save(content, output, kind)
    return f"imported a {kind} tokenizer of {loaded.vocabulary_size:,} tokens, {END_OF_TEXT} is {loaded.end_of_text_id}"


def load_tokenizer(path: Path) -> LoadedTokenizer:
    """The tokenizer in a `tokenizer.json`, compared with its sidecar if it has one.

    Raises:
        RelmError: the file is absent, changed, not a tokenizer, or lacks `<|endoftext|>` as a special token.
    """
    if sidecar_of(path).exists():
        checked_sidecar(path)
    return _checked(_text_of(path), path)


class _Measured:
    """Iterates over the training text and knows how much of it there was."""

    def __init__(self, documents: list[Path], limit: int) -> None:
        self.texts = first_texts(documents, limit)
        self.bytes = self.documents = 0

    def __iter__(self) -> "_Measured":
        return self

    def __next__(self) -> str:
        text = next(self.texts)
        self.bytes += len(text.encode())
        self.documents += 1
        return text


def _untrained(model: models.BPE | None = None) -> Tokenizer:
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _gpt2_bpe(vocabulary: Path, merges: Path) -> Tokenizer:
    try:
        tokenizer = _untrained(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises bare exceptions
        raise RelmError(f"{vocabulary}, {merges.name}: not the vocabulary and merges of a BPE: {error}") from None
    if tokenizer.token_to_id(END_OF_TEXT) is not None:  # else it would be added as a new token; `_checked` reports it
        tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file; run the step that makes the tokenizer") from None
    except UnicodeDecodeError:
        raise RelmError(f"{path}: not UTF-8, so not a tokenizer.json") from None


def _checked(content: str, path: Path) -> LoadedTokenizer:
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare exceptions
        raise RelmError(f"{path}: not a tokenizer.json of the tokenizers library: {error}") from None
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    if end_of_text is None:
        raise RelmError(f"{path}: has no token {END_OF_TEXT}, which stands between documents; use another tokenizer")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    if end_of_text in tokenizer.encode(END_OF_TEXT, add_special_tokens=False).ids:
        raise RelmError(f"{path}: {END_OF_TEXT} is an ordinary token; it must be among added_tokens with special: true")
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return LoadedTokenizer(tokenizer, size, end_of_text, hashlib.sha256(content.encode()).hexdigest())


def _save(content: str, output: Path, kind: str) -> None:
    with atomic_file(output) as file:
        file.write(content.encode())
    loaded = _checked(content, output)
    write_sidecar(output, vocabulary_size=loaded.vocabulary_size, end_of_text_id=loaded.end_of_text_id, kind=kind)
