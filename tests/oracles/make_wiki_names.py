"""Write src/relm/corpus/wikipedia/names.json: the names in each language that decide what of a wiki's page is text.

    apt-get download mediawiki && dpkg-deb -x mediawiki_*.deb mediawiki
    pip download --no-deps pywikibot-scripts && unzip -d pywikibot pywikibot_scripts-*.whl
    python tests/oracles/make_wiki_names.py mediawiki pywikibot

Namespaces and magic words are those of MediaWiki's messages, sections of links and references those that pywikibot's script
noreferences.py knows. Only names are taken, no code and no text; the PHP is searched and never run.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
OUTPUT = CHECKOUT / "src" / "relm" / "corpus" / "wikipedia" / "names.json"
NAMESPACES = "NS_MEDIA|NS_FILE|NS_CATEGORY"
_STRING = r"'((?:[^'\\]|\\.)*)'"
_PATTERN = re.compile(r"[\\()\[\]?*+|^$]")


def find_array(php: str, variable: str) -> str:
    """Return the text between the brackets of an array that is assigned to a variable; empty without one."""
    found = re.search(rf"^\s*(?:\w+ )*\${variable}\s*=\s*\[(.*?)^\s*\];", php, re.MULTILINE | re.DOTALL)
    return re.sub(r"(?m)^\s*(?:#|//|/?\*).*$", "", found[1]) if found else ""


def unescape(strings: list[str]) -> list[str]:
    """Return PHP's strings in single quotes without the backslashes before quotes and backslashes."""
    return [re.sub(r"\\(['\\])", r"\1", string) for string in strings]


def read_namespaces(php: str) -> Iterator[str]:
    """Yield the names and aliases of the namespaces of images, media and categories."""
    yield from unescape(re.findall(rf"\b(?:{NAMESPACES})\s*=>\s*{_STRING}", find_array(php, "namespaceNames")))
    yield from unescape(re.findall(rf"{_STRING}\s*=>\s*(?:{NAMESPACES})\b", find_array(php, "namespaceAliases")))


def read_magic_word(words: str, name: str) -> tuple[bool, list[str]]:
    """Return whether the case of a magic word counts, and its spellings."""
    found = re.search(rf"'{name}'\s*=>\s*\[\s*'?([01])'?(.*?)\]", words, re.DOTALL)
    return (found[1] == "1", unescape(re.findall(_STRING, found[2]))) if found else (False, [])


def read_messages(php: str, switches: list[str]) -> dict[str, list[str]]:
    """Return what a language's file of messages names."""
    words = find_array(php, "magicWords")
    read = [read_magic_word(words, switch) for switch in switches]
    fallback = re.search(rf"^\$fallback\s*=\s*{_STRING};", php, re.MULTILINE)
    return {
        "fallback": [code.strip() for code in fallback[1].split(",")] if fallback else [],
        "hidden": [name.replace("_", " ").lower() for name in read_namespaces(php)],
        "redirect": [name.lower() for name in read_magic_word(words, "redirect")[1]],
        "switches": [name.lower() for exact, names in read if not exact for name in names],
        "exact_switches": [name for exact, names in read if exact for name in names],
    }


def read_mediawiki(folder: Path) -> tuple[str, dict[str, dict[str, list[str]]], list[str]]:
    """Return version, names by language, and the languages that are converted between scripts."""
    root = folder / "usr" / "share" / "mediawiki"
    defines = (root / "includes" / "Defines.php").read_text()
    version = re.search(rf"'MW_VERSION', {_STRING}", defines)
    factory = find_array((root / "includes" / "MagicWordFactory.php").read_text(), "mDoubleUnderscoreIDs")
    converter = find_array((root / "includes" / "language" / "LanguageConverter.php").read_text(), "languagesWithVariants")
    messages = {
        path.stem.removeprefix("Messages").lower().replace("_", "-"): read_messages(
            path.read_text(), re.findall(_STRING, factory)
        )
        for path in sorted((root / "languages" / "messages").glob("Messages*.php"))
    }
    # English has variants only where a test of MediaWiki's own switches them on.
    return version[1] if version else "", messages, sorted(set(re.findall(_STRING, converter)) - {"en"})


def read_pywikibot(folder: Path) -> tuple[str, dict[str, list[str]]]:
    """Return version, and the titles of sections by language; titles that are patterns are left out."""
    tree = ast.parse((folder / "pywikibot_scripts" / "noreferences.py").read_text())
    found: dict[str, Any] = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("placeBeforeSections", "referencesSections")
    }
    tables = found["placeBeforeSections"], found["referencesSections"]["wikipedia"]
    titles = {
        code: [title.lower() for table in tables for title in table.get(code, ()) if not _PATTERN.search(title)]
        for code in sorted({*tables[0], *tables[1]})
    }
    (metadata,) = folder.glob("pywikibot_scripts-*.dist-info")
    return metadata.name.removesuffix(".dist-info").rpartition("-")[2], titles


def main() -> None:
    """Write the table, one language a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mediawiki", type=Path, help="folder of the unpacked Debian package")
    parser.add_argument("pywikibot", type=Path, help="folder of the unpacked wheel")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    mediawiki, languages, variants = read_mediawiki(arguments.mediawiki)
    pywikibot, sections = read_pywikibot(arguments.pywikibot)
    for code, titles in sections.items():
        languages.setdefault(code, {})["sections"] = titles
    about = {
        "made_by": "python tests/oracles/make_wiki_names.py",
        "sources": [
            f"MediaWiki {mediawiki}, Debian's package mediawiki: languages/messages/*.php",
            f"pywikibot-scripts {pywikibot} of PyPI: noreferences.py",
        ],
        "variants": variants,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in about.items()]
    rows = [
        f"  {json.dumps(code)}: {format_row(languages[code])}" for code in sorted(languages) if any(languages[code].values())
    ]
    arguments.output.write_text("\n".join(["{", *lines, ' "languages": {', ",\n".join(rows), " }", "}", ""]), encoding="utf-8")


def format_row(names: dict[str, list[str]]) -> str:
    """Return a language's names as JSON, each list sorted and without what is empty; the order of fallbacks counts."""
    kept = {key: found if key == "fallback" else sorted(set(found)) for key, found in names.items() if found}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
