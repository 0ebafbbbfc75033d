"""The tokenizer of the harness's process: the ids of `tokenizer.json`, which training and all other evaluations read.

`transformers` builds the tokenizers of some classes from the vocabulary and merges in `tokenizer.json`, without its normaliser
and split. Nothing of relm is imported here, because the harness's environment has none of it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
# Of a larger vocabulary an even share is compared.
MOST_TOKENS = 4096
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def choose_tokenizer(folder: str) -> tuple[Any, dict[str, Any]]:
    """Return the tokenizer that the harness is given, and what the protocol records of it.

    It is the folder itself, which `transformers` opens; or if the ids would then be others than those of its tokenizer.json,
    the tokenizer in that file, with the same special tokens.

    Raises:
        ValueError: `transformers` cannot open it, or it has no end of text, which the harness puts before every text.
    """
    from transformers import AutoTokenizer

    try:
        opened = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [""]
        advice = "tokenizer_class: PreTrainedTokenizerFast reads tokenizer.json as it is"
        raise ValueError(f"cannot be opened by transformers ({type(error).__name__}: {first}); {advice}") from error
    tokenizer, why = read_unchanged(Path(folder) / "tokenizer.json", opened) or (opened, None)
    recorded = read_beginnings(tokenizer)
    if recorded["prefix_token"] is None:
        raise ValueError("has no end of text; name its eos_token in tokenizer_config.json")
    return (folder, recorded) if why is None else (tokenizer, {**recorded, "tokenizer": why})


def read_unchanged(file: Path, opened: Any) -> tuple[Any, str] | None:
    """Return the tokenizer in a tokenizer.json, and a phrase on why it is read; None: the opened one has the same ids."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast, __version__

    if not file.exists():
        return None
    own = Tokenizer.from_file(str(file))
    own.no_truncation()
    own.no_padding()
    text = next(find_differences(opened, own), None)
    if text is None:
        return None
    tokens = {role: token for role, token in opened.special_tokens_map.items() if role in ROLES}
    named = {role: token for role, token in tokens.items() if own.token_to_id(token) is not None}
    settings = {name: getattr(opened, name) for name in ("model_max_length", "clean_up_tokenization_spaces")}
    unchanged = PreTrainedTokenizerFast(tokenizer_object=own, **settings, **named)  # type: ignore[no-untyped-call]
    why = f"{type(opened).__name__} of transformers {__version__} has other ids for {text[:40]!r}"
    if next(find_differences(unchanged, own), None) is not None:
        raise ValueError(
            f"has a special token of its settings, {' or '.join(named.values())}, inside words: {why}; name another"
        )
    return unchanged, f"{why}: tokenizer.json is read instead"


def find_differences(opened: Any, own: Any) -> Iterator[str]:
    """Yield the compared texts for which a tokenizer of `transformers` gives other ids than one of `tokenizers`."""
    numbers = range(0, own.get_vocab_size(), -(-own.get_vocab_size() // MOST_TOKENS))
    for text in (*TEXTS, *filter(None, own.decode_batch([[number] for number in numbers]))):
        found = read_ids(opened, text, "input_ids"), read_ids(own.encode, text, "ids")
        if found[0] != found[1]:
            yield text


def read_ids(encode: Callable[..., Any], text: str, name: str) -> list[int] | None:
    """Return the ids of a text; None where the library raises a bare exception, since a character has no token."""
    try:
        return list(getattr(encode(text, add_special_tokens=False), name))
    except Exception:
        return None


def read_beginnings(loaded: Any) -> dict[str, Any]:
    """Return the tokens that a tokenizer puts before every text, and the one before a text whose first token is scored."""
    encoded = loaded("a", return_special_tokens_mask=True)
    added = encoded["input_ids"][: [*encoded["special_tokens_mask"], 0].index(0)]
    prefix = loaded.eos_token_id if loaded.bos_token_id is None else loaded.bos_token_id
    described = [{"id": number, "token": loaded.convert_ids_to_tokens(number)} for number in added]
    before_all = None if prefix is None else {"id": prefix, "token": loaded.convert_ids_to_tokens(prefix)}
    return {"begin": "tokenizer", "begin_tokens": described, "prefix_token": before_all}
