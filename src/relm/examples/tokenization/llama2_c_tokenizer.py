"""Read the tokenizer of a model of karpathy/llama2.c from the file that its tokenizer.py writes from a sentencepiece model.

sentencepiece's BPE merges the neighbours whose piece has the best score, of equal ones the leftmost; a character without a
piece becomes its bytes in UTF-8. Here each piece becomes merges in the order of the scores.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from relm.errors import RelmError
from relm.examples.tokenization.tokenizer_models import SPACE, UNKNOWN

BEGIN, END = "<s>", "</s>"
# The first three pieces, which are not text, as tokenizer.py writes them.
_WRITTEN = {UNKNOWN: UNKNOWN, f"\n{BEGIN}\n": BEGIN, f"\n{END}\n": END}
_BYTES = [f"<0x{number:02X}>" for number in range(256)]


class Piece(NamedTuple):
    """A piece of the vocabulary; its id is its position in the file."""

    text: str
    score: float


def llama2_c(path: Path) -> Tokenizer:
    """Return the tokenizer in llama2.c's file.

    `<s>` begins each text, as in its training data; texts have no end token, so `</s>` is not special.
    """
    pieces = _read_pieces(path)
    numbers = {piece.text: number for number, piece in enumerate(pieces)}
    if list(numbers)[:3] != [*_WRITTEN.values()] or list(numbers)[3:259] != _BYTES or len(numbers) != len(pieces):
        raise RelmError(f"{path}: expected <unk>, <s>, </s>, the 256 bytes and then other pieces, each once; give another file")
    model = models.BPE(numbers, _merges(pieces[259:], numbers), unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([UNKNOWN, BEGIN])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, numbers[BEGIN])]
    )
    return tokenizer


def _read_pieces(path: Path) -> list[Piece]:
    """Return all pieces: after the longest length, the score, the length and the UTF-8 of each."""
    content, position, pieces = path.read_bytes(), 4, list[Piece]()
    try:
        while position < len(content):
            score, size = struct.unpack_from("<fi", content, position)
            text = content[position + 8 : position + 8 + size].decode()
            if size < 1 or position + 8 + size > len(content):
                raise ValueError(f"a piece of {size} bytes at byte {position + 8}")
            pieces.append(Piece(_WRITTEN.get(text, text.replace(" ", SPACE)), score))
            position += 8 + size
    except (struct.error, ValueError) as error:
        raise RelmError(f"{path}: not the tokenizer of a model of llama2.c ({error}); give its tokenizer.bin") from None
    return pieces


def _merges(pieces: list[Piece], numbers: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece, those of the best score first."""
    ordered = sorted(pieces, key=lambda piece: -piece.score)
    cut = ((piece.text[:end], piece.text[end:]) for piece in ordered for end in range(1, len(piece.text)))
    return [(left, right) for left, right in cut if left in numbers and right in numbers]
