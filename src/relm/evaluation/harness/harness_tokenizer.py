"""The tokenizer that the harness reads, which has the ids of `tokenizer.json` as in training and all other evaluations.

For some classes `transformers` builds the tokenizer from the vocabulary and merges in `tokenizer.json`, without its normaliser
and split.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from relm.errors import RelmError

# Texts on which normalisers, splits and merges differ.
TEXTS = (
    "  two spaces,\ttab \n line\r\n\n\n  \u00a0 no-break \u2003 em \u3000 wide  ",
    "It's 3.14 or 1,234,567 in 2026; x2 = 10^6 (½ of 5⁷), ١٢٣, 98765432101234567890123456789, 1919",
    "DON'T we'LL snake_case camelCase HTTPServer https://a.b/c?d=e#f @user #tag ... --- !!! \"a\" «b» “c”",
    "👩‍👩‍👧‍👦 🇪🇺 👍🏽 ☃ ✈️",
    "東京は日本の首都。서울 北京，ﾊﾝｶｸ Ｆｕｌｌ",
    "Zoë, naïve, Ångström, café and cafe\u0301, Straße, İstanbul, ﬁne, Việt",
    "Москва ѐ Αθήνα ά हिन्दी ไทย שָׁלוֹם العَرَبِيَّة",
    "def f(x):\n    return x  # ok\n\tif a != b:\n\t\t{'k': [1, 2]}\n",
)
# Tokens to compare, evenly spread over a larger vocabulary.
MOST_TOKENS = 4096
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def choose_tokenizer(folder: Path, made: Path, named: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the harness's tokenizer, and its record for the protocol.

    It is `folder`, unless `transformers` reads other ids there than those of tokenizer.json; then it is `made`, with the
    tokenizer in that file and the same special tokens. Messages name the user's path, `named`.
    """
    from transformers import PreTrainedTokenizerFast, __version__

    opened, why = _open(folder, named), None
    own: Any = Tokenizer.from_file(str(folder / "tokenizer.json")) if (folder / "tokenizer.json").exists() else None
    if own is not None:
        own.no_truncation()
        own.no_padding()
    text = next(find_differences(opened, own), None) if own is not None else None
    if own is not None and text is not None:
        why = f"{type(opened).__name__} of transformers {__version__} has other ids for {text[:40]!r}"
        tokens = {role: token for role, token in opened.special_tokens_map.items() if role in ROLES}
        known = {role: token for role, token in tokens.items() if own.token_to_id(token) is not None}
        settings = {name: getattr(opened, name) for name in ("model_max_length", "clean_up_tokenization_spaces")}
        unchanged = PreTrainedTokenizerFast(tokenizer_object=own, **settings, **known)  # type: ignore[no-untyped-call]
        unchanged.save_pretrained(made)
        opened = _open(made, named)
        if next(find_differences(opened, own), None) is not None:
            raise RelmError(
                f"{named}: a special token of the settings, {' or '.join(known.values())}, also occurs inside words: {why}; "
                "name another"
            )
    recorded = read_beginnings(opened)
    if recorded["prefix_token"] is None:
        raise RelmError(f"{named}: the tokenizer has no end of text; name its eos_token in tokenizer_config.json")
    return (folder, recorded) if why is None else (made, {**recorded, "tokenizer": f"{why}: tokenizer.json is read instead"})


def _open(folder: Path, named: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [""]
        raise RelmError(
            f"{named}: the tokenizer cannot be opened by transformers ({type(error).__name__}: {first}); tokenizer_class: "
            "PreTrainedTokenizerFast reads tokenizer.json unchanged"
        ) from error


def find_differences(opened: Any, own: Any) -> Iterator[str]:
    """Yield the texts for which a tokenizer of `transformers` has other ids than one of `tokenizers`."""
    numbers = range(0, own.get_vocab_size(), -(-own.get_vocab_size() // MOST_TOKENS))
    for text in (*TEXTS, *filter(None, own.decode_batch([[number] for number in numbers]))):
        found = read_ids(opened, text, "input_ids"), read_ids(own.encode, text, "ids")
        if found[0] != found[1]:
            yield text


def read_ids(encode: Callable[..., Any], text: str, name: str) -> list[int] | None:
    """Return the ids of a text; None where a character has no token and the library raises a bare exception."""
    try:
        return list(getattr(encode(text, add_special_tokens=False), name))
    except Exception:
        return None


def read_beginnings(loaded: Any) -> dict[str, Any]:
    """Return the tokens that a tokenizer puts before every text, and the one that a scored first token follows."""
    encoded = loaded("a", return_special_tokens_mask=True)
    added = encoded["input_ids"][: [*encoded["special_tokens_mask"], 0].index(0)]
    prefix = loaded.eos_token_id if loaded.bos_token_id is None else loaded.bos_token_id
    described = [{"id": number, "token": loaded.convert_ids_to_tokens(number)} for number in added]
    before_all = None if prefix is None else {"id": prefix, "token": loaded.convert_ids_to_tokens(prefix)}
    return {"begin": "tokenizer", "begin_tokens": described, "prefix_token": before_all}
