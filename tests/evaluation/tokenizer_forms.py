"""Tokenizers in the forms of published models, trained here on the prose sample."""

import io
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from harness_tasks import PROSE

SPECIAL = ("<unk>", "<s>", "</s>")


def legacy_sentencepiece(path: Path, size: int = 500) -> sentencepiece.SentencePieceProcessor:
    """Train a SentencePiece BPE, write it as Llama-2's `tokenizer.json` is written, and return the original.

    A normalizer puts U+2581 before every text and for each space; nothing splits words, so only the merges decide.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE.read_text(encoding="utf-8").splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = {original.id_to_piece(number): number for number in range(original.get_piece_size())}
    tokenizer = Tokenizer(models.BPE(ids, _merges(ids), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.save(str(path))
    return original


def _merges(ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that merge into a third, ordered by the id of that third, the best first."""
    return [pair for piece in ids for pair in sorted(_halves(piece, ids), key=lambda pair: (ids[pair[0]], ids[pair[1]]))]


def _halves(piece: str, ids: dict[str, int]) -> list[tuple[str, str]]:
    return [(piece[:at], piece[at:]) for at in range(1, len(piece)) if piece[:at] in ids and piece[at:] in ids]


def byte_level(path: Path, texts: Sequence[str], pattern: str | None, size: int = 500) -> Tokenizer:
    """Train a byte-level BPE on texts that a regular expression divides into words; None: on undivided texts."""
    tokenizer = Tokenizer(models.BPE())
    parts = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer
