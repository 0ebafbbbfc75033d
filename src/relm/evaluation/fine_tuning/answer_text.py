"""The text of an answer, from its first and last token.

By a WordPiece it is found as the original BERT's `run_squad.py` does, which knows no characters of tokens: it aligns the text
of the tokens, without case and accents, with the words that they come from, and where that fails it returns the whole words. By
other tokenizers it is the paragraph from the first token's first character to the last token's last one, as in `run_qa.py` of
transformers.
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
    """Return the part of some words that the pieces of a WordPiece stand for; all of them if the two cannot be aligned.

    They can if the words have as many characters, spaces aside, once they are in lower case and without accents.
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
    """Return the count of characters other than spaces."""
    return len(text) - text.count(" ")
