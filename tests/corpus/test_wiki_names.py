import json
import subprocess
import sys
from pathlib import Path

from relm.corpus.wikipedia.names import names_of
from small_project import CHECKOUT

MESSAGES = """<?php
$fallback = 'lv, en';
$namespaceNames = [
	NS_MEDIA            => 'Medeja',
	NS_FILE             => 'Fails',
	NS_FILE_TALK        => 'Faila_sprīža',
	# NS_CATEGORY       => 'Old',
	NS_CATEGORY         => 'L\\'ordine',
];
$namespaceAliases = [ 'Bilde_x' => NS_FILE, 'Bildes_sprīža' => NS_FILE_TALK,
];
/** @phpcs-require-sorted-array */
$magicWords = [
	'index'                     => [ '1', '__Indekss__', '__INDEX__' ],
	'notoc'                     => [ 0, '__BEZ_Satura__' ],
	'redirect'                  => [ '0', '#Pāradresēt', '#REDIRECT', '#d\\'x' ],
	'img_thumbnail'             => [ '1', 'thumb' ],
];
"""
SECTIONS = """
placeBeforeSections = {'it': ['Vedi anche'], 'ltg': ['Saitys']}
referencesSections: dict
referencesSections = {'wikipedia': {'it': ['Note', 'Note?']}}
other = print('never run')
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_table_is_read_from_messages_and_scripts_that_are_never_run(tmp_path: Path) -> None:
    root = tmp_path / "mediawiki" / "usr" / "share" / "mediawiki"
    write(root / "includes" / "Defines.php", "define( 'MW_VERSION', '1.2.3' );")
    write(
        root / "includes" / "MagicWordFactory.php",
        "class A {\n\tprivate $mDoubleUnderscoreIDs = [\n'notoc',\n'index',\n\t];\n}",
    )
    converter = "class B {\n\tpublic static $languagesWithVariants = [\n'zh',\n'en',\n\t];\n}"
    write(root / "includes" / "language" / "LanguageConverter.php", converter)
    write(root / "languages" / "messages" / "MessagesBe_tarask.php", MESSAGES)
    write(tmp_path / "wheel" / "pywikibot_scripts" / "noreferences.py", SECTIONS)
    (tmp_path / "wheel" / "pywikibot_scripts-9.8.dist-info").mkdir()
    output = tmp_path / "names.json"
    script = CHECKOUT / "tests" / "oracles" / "make_wiki_names.py"
    command = [sys.executable, str(script), str(tmp_path / "mediawiki"), str(tmp_path / "wheel"), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    table = json.loads(output.read_text(encoding="utf-8"))
    assert table["variants"] == ["zh"]
    assert [source.split(",")[0].split(" of ")[0] for source in table["sources"]] == [
        "MediaWiki 1.2.3",
        "pywikibot-scripts 9.8",
    ]
    assert table["languages"] == {
        "be-tarask": {
            "fallback": ["lv", "en"],
            "hidden": ["bilde x", "fails", "l'ordine", "medeja"],
            "redirect": ["#d'x", "#pāradresēt", "#redirect"],
            "switches": ["__bez_satura__"],
            "exact_switches": ["__INDEX__", "__Indekss__"],
        },
        "it": {"sections": ["note", "vedi anche"]},
        "ltg": {"sections": ["saitys"]},
    }


def test_the_shipped_table_states_its_sources_and_knows_the_wikis() -> None:
    table = json.loads((CHECKOUT / "src" / "relm" / "corpus" / "wikipedia" / "names.json").read_text(encoding="utf-8"))
    assert "MediaWiki 1." in table["sources"][0]
    assert "pywikibot-scripts" in table["sources"][1]
    assert len([code for code, names in table["languages"].items() if "hidden" in names]) > 250
    for code in list(table["languages"])[::10]:  # their patterns compile, and none matches an empty text
        names = names_of(code)
        assert names.redirect.match("#REDIRECT [[A]]")
        assert not names.redirect.match("A")
        assert not names.switches.match("a __")
        assert {"file", "image", "category"} <= names.hidden
        assert all(title == title.lower().strip() for title in names.sections)
