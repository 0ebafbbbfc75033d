"""A small corpus in the form of OpenWebText, with passages of a test in it; the same bytes on every machine."""

import hashlib
import lzma
import random

from small_archives import tar_of

_VOCABULARY = (
    "Time river stone under WALKED the a of and don't caf\u00e9 na\u00efve x_ray 42 \u0130stanbul "
    "\u039f\u0394\u039f\u03a3 e\u0301te \u6771\u4eac mother-in-law said; light window (garden) house every morning never again "
    "slowly toward village oars dark lake"
)
_WORDS = _VOCABULARY.split()


def _sentence(draw: random.Random, length: int) -> str:
    words = [draw.choice(_WORDS) + draw.choice(("", "", "", ",", " -")) for _ in range(length)]
    return " ".join(words) + draw.choice((".", "!", "?", ". ", ".\n", "...", ""))


def _text(draw: random.Random, characters: int) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) < characters:
        parts.append(_sentence(draw, draw.randrange(3, 25)))
    return " ".join(parts)


def _disguise(draw: random.Random, passage: str) -> str:
    """Return a passage with other case and punctuation, which has the same words."""
    changed = draw.choice((str.lower, str.upper, str))(passage) if passage.lower() == passage.upper().lower() else passage
    return changed.replace(" ", draw.choice((" ", "  ", ", ", "\n", " ... ")))


def make_passages() -> list[str]:
    """Return the passages of a test: long ones, and some of 6 to 13 words."""
    draw = random.Random(20261127)
    passages = [_sentence(draw, draw.randrange(14, 60)) for _ in range(40)]
    return passages + [" ".join(draw.choices(_WORDS, k=length)) for length in (6, 7, 8, 8, 9, 10, 11, 12, 12, 13, 13)]


def make_texts() -> list[str]:
    """Return documents with no passage, one, many, and phrases that are common to many documents."""
    draw, passages = random.Random(7), make_passages()
    common = passages[:2] + passages[-4:-2]
    texts = [_text(draw, draw.randrange(1, 1500)) for _ in range(60)]
    for number in range(150):
        count = draw.choice((1, 1, 1, 2, 3, 6)) if number % 3 else 1
        parts = []
        for _ in range(count):
            parts.append(_text(draw, draw.choice((0, 1, 150, 199, 200, 201, 400, 900))))
            chosen = draw.choice(common if number % 3 == 0 else passages)
            words = chosen.split()
            if draw.random() < 0.4 and len(words) > 14:
                first = draw.randrange(len(words) - 13)
                chosen = " ".join(words[first : first + draw.choice((12, 13, 14))])
            parts.append(_disguise(draw, chosen))
        parts.append(_text(draw, draw.choice((0, 1, 199, 201, 700))))
        texts.append(draw.choice((" ", ". ", "\n")).join(parts))
    for count in (8, 9, 10, 11, 12, 20):
        texts.append(". ".join(f"{_text(draw, 700)}. {passages[20 + count % 7]}" for _ in range(count)))
    texts += [passages[-1], passages[-2] + " more", "word " * 13, passages[3] * 12]
    return [text for text in dict.fromkeys(texts) if text.strip()]


def make_archive() -> bytes:
    """Return the texts as OpenWebText has them: an archive of compressed archives of files, with all kinds of line ends."""
    texts = make_texts()
    members = {}
    for first in range(0, len(texts), 50):
        files = {}
        for number, text in enumerate(texts[first : first + 50], first):
            content = text.replace("\n", ("\n", "\r\n", "\r")[number % 3]).encode()
            files[f"{number:07}-{hashlib.md5(content, usedforsecurity=False).hexdigest()}.txt"] = content
        members[f"openwebtext/urlsf_subset00-{first // 50}_data.xz"] = lzma.compress(tar_of(files, "w"), preset=0)
    return tar_of(members, "w")
