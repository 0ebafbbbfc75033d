"""The text of an answer, from its first and last token.

With a WordPiece it is found as in the original BERT's `run_squad.py`, which does not know the characters of tokens. It aligns
the tokens' text, without case and accents, with the words that they come from; if that fails, it returns the whole words.
With other tokenizers it is the paragraph from the first token's first character to the last token's last one, as in
transformers' `run_qa.py`.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

from relm.examples.fine_tuning.answer_windows import TokenizedParagraph
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.examples.tokenization.tokenizer_models import CONTINUING


def answer_text(tokenizer: LoadedTokenizer, paragraph: TokenizedParagraph, first: int, last: int) -> str:
    """Return the text of an answer, from its first and last token in the paragraph."""
    tokens = paragraph.tokens
    if tokenizer.kind != "wordpiece":
        return paragraph.text[int(tokens.starts[first]) : int(tokens.ends[last])]
    words = paragraph.words[int(paragraph.word_of_token[first]) : int(paragraph.word_of_token[last]) + 1]
    pieces = [tokenizer.tokenizer.id_to_token(token) or "" for token in tokens.ids[first : last + 1].tolist()]
    return aligned_text(tokenizer.tokenizer, pieces, words)


def aligned_text(tokenizer: Tokenizer, pieces: Sequence[str], words: Sequence[str]) -> str:
    """Return the part of some words that WordPiece's pieces stand for, or all of them if the two cannot be aligned.

    They can if the words, without spaces, keep their number of characters in lower case and without accents.
    """
    predicted = " ".join(pieces).replace(f" {CONTINUING}", "").replace(CONTINUING, "").strip()
    original = " ".join(words)
    normal = tokenizer.normalizer.normalize_str(original) if tokenizer.normalizer is not None else original
    plain = " ".join(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    kept = [position for position, character in enumerate(original) if character != " "]
    start = plain.find(predicted) if predicted else -1
    if start == -1 or len(kept) != _letters(plain):
        return original
    first = _letters(plain[:start])
    return original[kept[first] : kept[first + _letters(predicted) - 1] + 1]


def _letters(text: str) -> int:
    """Count the characters other than spaces."""
    return len(text) - text.count(" ")
