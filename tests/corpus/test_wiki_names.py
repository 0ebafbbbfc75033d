import json

from relm.corpus.wikipedia.names import names_of
from small_project import CHECKOUT


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
