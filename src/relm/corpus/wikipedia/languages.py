"""Compare the language of a wiki's dump with the language of a dataset."""

from collections.abc import Mapping

# Other codes -> tags of BCP 47, after MediaWiki's LanguageCode.php and Wikimedia's wikis: depending on its age a dump has
# either, and a person may know a language by its wiki's address. Norwegian's no.wikipedia.org is in Bokmål, nb.
_TAGS: Mapping[str, str] = {
    "als": "gsw",
    "bat-smg": "sgs",
    "be-x-old": "be-tarask",
    "bh": "bho",
    "cbk-zam": "cbk",
    "eml": "egl",
    "fiu-vro": "vro",
    "in": "id",
    "iw": "he",
    "ji": "yi",
    "map-bms": "jv-x-bms",
    "mo": "ro-cyrl-md",
    "no": "nb",
    "nrm": "nrf",
    "roa-rup": "rup",
    "roa-tara": "nap-x-tara",
    "simple": "en-simple",
    "tokipona": "tok",
    "zh-cfr": "nan",
    "zh-classical": "lzh",
    "zh-min-nan": "nan",
    "zh-yue": "yue",
}  # fmt: skip
# Tags without one language: undetermined, multiple, uncoded.
_NONE = frozenset({"", "und", "mul", "mis"})


def tag_of(code: str) -> str:
    """Return the tag of BCP 47, in lower case, for the code of a language or of a wiki.

    >>> tag_of("zh-yue"), tag_of("simple"), tag_of("sr-Latn")
    ('yue', 'en-simple', 'sr-latn')
    """
    return _TAGS.get(code.lower(), code.lower())


def is_same_language(one: str, other: str) -> bool:
    """Return whether two codes name one language in any script, region or variant, or one of them names none.

    >>> is_same_language("simple", "en"), is_same_language("nn", "no"), is_same_language("und", "ro")
    (True, False, True)
    """
    one, other = tag_of(one), tag_of(other)
    return not _NONE.isdisjoint({one, other}) or one.partition("-")[0] == other.partition("-")[0]
