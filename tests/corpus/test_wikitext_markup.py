import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relm.corpus.wikipedia.markup import extract_plain_text
from relm.corpus.wikipedia.names import names_of

PIECES = [
    "{{", "}}", "{{{", "}}}", "[[", "]]", "{|", "|}", "|-", "|", "||", "!", "<ref>", "</ref>", '<ref name="x" />',
    "<!--", "-->", "<nowiki>", "</nowiki>", "<math>", "</math>", "<pre>", "<poem>", "</poem>", "<table>", "</table>",
    "<br />", "<sup>2</sup>", "<", ">", "[http://a", "[//b c]", "]", "[", "'", "''", "'''", "'''''", "=", "==", "\n",
    "\n\n", "\n== See also ==\n", "\n=A=\n", "* ", ": ", "; ", "# ", " ", "  ", "\t", "\r", "(", ")", ",", "( , )",
    "&amp;", "&nbsp;", "&#10;", "&lt;", "&#xD800;", "File:x.png", "Category:", "de:", ":", "convert", "nowrap",
    "lang", "word", "7", "é", "漢字", "\x02", "\x03", "\x020\x03", "\x00", "_", "__TOC__", "----", "\u2028", "\xa0",
]  # fmt: skip
MARKUP = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=60).map("".join)


def check(cases: dict[str, str], language: str = "en") -> None:
    assert {source: extract_plain_text(source, names_of(language)) for source in cases} == cases


def test_prose_stays_as_it_is() -> None:
    text = "It cost $5 (or 6), AT&T said: 3 < 4 > 2 & x|y; f(a[0]) = {b}. https://example.org/a_b/?a=1&b=2 \\o/ #1 *"
    check({text: text})


def test_links_show_their_label() -> None:
    check({
        "a [[dog]] and [[cat]]s": "a dog and cats",
        "[[Dog|the '''dog''']] [[Dog#Legs|legs]] [[#Tail]]": "the dog legs #Tail",
        "[[Mercury (planet)|]], [[Help:Edit|]]": "Mercury, Edit",
        "[[Wikipedia:Help|help]] [[Star Trek: Picard]] [[wikt:Word|word]]": "help Star Trek: Picard word",
        "see [[:Category:Dogs]], [[:fr:Chien|chien]]": "see Dogs, chien",
        "[[a [b] c]] [[x|y [z]]]": "a [b] c y [z]",
        "[http://x.org/a label one] [https://x.org] [mailto:a@b.c mail] [//x.org z]": "label one mail z",
        "bare http://x.org/a_b stays, [1] too": "bare http://x.org/a_b stays, [1] too",
        "[[unclosed and [[closed]]": "unclosed and closed",
    })  # fmt: skip


def test_runs_of_brackets_have_their_links_found_from_the_inside() -> None:
    check({
        "a [[[b]] c": "a [b c",
        "a [[[[b]] c": "a b c",
        "a [[[[[b]]]]] c": "a [b] c",
        "a [[b]]] c": "a b] c",
        "{{{a}}} b {{{{c}}}} d": "b d",
        "a{ {{lang|fr|b}} }c": "a{ b }c",
    })  # fmt: skip


def test_spaces_that_an_omitted_template_leaves_before_punctuation_go() -> None:
    check({
        "a (b , ) c": "a (b) c",
        "a (b , , ) c": "a (b ,) c",
        "a (b,, ) c": "a (b,) c",
        "a (b ) ) , ) c": "a (b))) c",
        "a . , b . c": "a., b. c",
        "( , ) a": "a",
    })  # fmt: skip


def test_images_categories_and_other_languages_show_nothing() -> None:
    check({
        "[[File:A.jpg|thumb|A [[dog]] with [[x|[y]]] and [http://z w], {{small|a}} {{cite|b}}]]A dog": "A dog",
        "[[Image:A.png|left|[[a|b]] [[c]] [[Image:x|[[y]]]]]]one\ntwo": "one two",
        "one[[Category:Dogs]][[category:Cats|*]] [[de:Hund]] [[zh-min-nan:Káu]] [[simple:Dog]] two": "one two",
        "([[Media:Dog.ogg|listen]]) [[Bild:Dog.svg|mini|Hund]]x": "x",
    })  # fmt: skip
    assert extract_plain_text("[[Файл:x|y]] [[File:x]]ok [[Файл]]", names_of("ru")) == "ok Файл"


def test_templates_vanish_but_those_that_belong_to_the_sentence() -> None:
    check({
        "{{Infobox\n| a = {{b|{c}|{{d}}}}\n| e = [[x|y]]\n}}\nText{{fact|date=May}}.": "Text.",
        "It is {{convert|5|km|mi|abbr=on}} or {{cvt|2|to|3|C}} off.": "It is 5 km or 2 to 3 °C off.",
        "{{lang|fr|[[a|bonjour]]}}, {{lang-de|Tag}}, {{nowrap|1={{lang|it|ciao}}}} {{Small| x }}": "bonjour, Tag, ciao x",
        "{{frac|1|2}} {{frac|3|1|2}} {{frac|4}} {{c.|1900}} {{As of|2010|lc=y}}": "1/2 3 1/2 1/4 c. 1900 as of 2010",
        "H{{sub|2}}O{{spaced ndash}}{{chem|H|2|O}} {{USS|Maine|ACR-1|6}} {{quote|So be it.}}": "H2O – H2O USS Maine So be it.",
        "a {{{1|{{{2}}}}}} b {{{{x}}}}": "a b",
        "a }} b {{ c": "a b c",
        "{{lang}} {{convert|5}} {{frac}} {{transl}}x": "5 x",
    })  # fmt: skip


def test_templates_are_those_of_the_language() -> None:
    check({
        "(vācu: {{val|de|Tag}}) {{lang|fr|jour}} {{nowrap|a b}} {{convert|2|to|3|C}}": "(vācu: Tag) jour a b 2–3 °C",
        "a{{as of|2010}} b{{ar|x}} c{{circa|1900}} d{{ss|Maine}}": "a b c d",
    }, "lv")  # fmt: skip
    check({"{{val|de|Tag}}a {{unité|5|km|2}} {{Lang|en|day}}": "a 5 km² day"}, "fr")
    check({"{{val|5|ul=km}} {{as of|2010}} {{convert|2|to|3|C}}": "5 km As of 2010 2 to 3 °C"})


def test_tables_vanish_with_what_they_hold() -> None:
    check({
        "Before\n{| class=x\n|-\n! a || b\n| {{c}} || {| nested\n| [[d|e]]\n|}\n|}\nafter": "Before\nafter",
        "a <table><tr><td>x<table border=1><td>y</table></td></tr></table> b <TABLE>c</TABLE>": "a\nb",
        "{| never closed\n| cell\n! head | x\ntext": "text",
        "{{Box never closed\n| a = b\n| c\nText": "Text",
        "|} text": "",
    })  # fmt: skip


def test_references_comments_and_blocks_vanish() -> None:
    check({
        'a<ref>b {{c}}</ref>, d<ref name="e"/> f<REF name=g >h</Ref>.': "a, d f.",
        "a<!-- b\n\nc -->d<!---->e<!-- never closed": "ade",
        "one\n<!-- a comment alone on a line -->\ntwo": "one two",
        "a<gallery>\nFile:x|y\n</gallery>b<timeline>z</timeline><references />": "ab",
        "<pre>int x;</pre><source lang=c>{{</source>a<references>b</references>": "a",
        "an <ref>unclosed one stays": "an unclosed one stays",
        "<ref>a</ref> b <ref> c": "b c",
    })  # fmt: skip


def test_formulas_and_nowiki_are_kept_verbatim() -> None:
    check({
        "so <math>\n \\frac{{a}}{b} < ''c''_{[[d]]} \n</math>,": "so \\frac{{a}}{b} < ''c''_{[[d]]},",
        "<nowiki>[[a|b]] '''c''' &lt; <br></nowiki> d<nowiki/>e": "[[a|b]] '''c''' < <br> de",
        "{{x|<nowiki>}}</nowiki>}}f \x020\x03 \x02": "f 0",
        "<math></math>g": "g",
    })  # fmt: skip


def test_html_leaves_its_text() -> None:
    check({
        "<b>a</b> <span style='x'>b</span> <font color=red>c</FONT> <code>d<e></code> 1 <2": "a b c d<e> 1 <2",
        "a<br>b<br/>c<BR clear=all>d": "a\nb\nc\nd",
        "<div>a</div><center>b</center><blockquote>c</blockquote>": "a\nb\nc",
        "10<sup>6</sup> m<sup>−2</sup> x<sup>n</sup> 1<sup>st</sup> H<sub>2</sub>O": "10⁶ m⁻² xⁿ 1st H2O",
        "<poem>one\ntwo {{x}}\n\nthree</poem>": "one\ntwo\nthree",
    })  # fmt: skip


def test_emphasis_and_magic_words_go() -> None:
    check({
        "'''bold''' ''it'' '''''both''''' l'''a'' it's '''dogs''''": "bold it both l'a it's dogs'",
        "a ''{{x}}'' b '''[[File:y.png]]''' c": "a b c",
        "__NOTOC__ a __init__ __b": "a __init__ __b",
    })  # fmt: skip


def test_apostrophes_among_quotes_stay() -> None:
    """MediaWiki's rules: where bold and italic are both left open in a line, one run of three is an apostrophe and italic."""
    check({
        "L'opera dell'''Iliade'', '''Omero''' e ''x''": "L'opera dell'Iliade, Omero e x",
        "l'''Iliade'' e '''Omero'''": "l'Iliade e Omero",
        "'''Omero''' scrisse l'''Iliade'' qui": "Omero scrisse l'Iliade qui",
        "la '''sua dell'''arte l'''Iliade''": "la sua dellarte l'Iliade",  # first after a word of one letter
        "la '''sua dell'''arte all'''Iliade''": "la sua dell'arte allIliade",  # then after a longer word
        "la '''sua''": "la 'sua",  # then after a space
        "la '''sua '''e '''tua''": "la 'sua e tua",
        "l'''Iliade\n''e'' l'''Odissea''": "lIliade e l'Odissea",  # each line by itself
        "l'''Iliade'' e l'''Odissea''": "lIliade e lOdissea",  # shown in bold by MediaWiki too
        "a ''b ''' c'''": "a b c",
        "l''''Iliade''' ''''x''' it''''s": "l'Iliade 'x it's",
        "a ''''''b''''' '''''''c'''''": "a 'b ''c",
        "'''''a''' b'' ''c": "a b c",
        "l''''''Iliade'' dell'''x": "l'Iliade dellx",
        "l'''''Iliade'' dell'''x": "lIliade dellx",
        "'''x": "x",
        "a '''''b": "a b",
        "<poem>\n''a\nl'''b''\n</poem>": "a\nl'b",
        "[[x|l'''Iliade'']] <nowiki>l'''Iliade''</nowiki>": "l'Iliade l'''Iliade''",
    })  # fmt: skip


def test_entities_are_decoded_once_and_after_the_markup() -> None:
    check({
        "a&nbsp;b &ndash; &#8212; &#x2014; &eacute; &#151;": "a b – — — é —",
        "&lt;ref&gt; &#91;&#91;a]] &amp;lt; &amp;amp;": "<ref> [[a &lt; &amp;",
        "AT&T &notanentity; &copy2 & ; R&D;": "AT&T &notanentity; &copy2 & ; R&D;",
    })  # fmt: skip


def test_paragraphs_headings_and_items_are_lines() -> None:
    source = (
        "One\nparagraph.\n\n\nTwo.\n== Head ==\nThree.\n* item\n** [[sub|sub item]]\n# first\n:indented\n;term\n----\n  Four"
    )
    lines = ["One paragraph.", "Two.", "Head", "Three.", "item", "sub item", "first", "indented", "term", "Four"]
    assert extract_plain_text(source).split("\n") == lines


def test_sections_without_content_lose_their_heading() -> None:
    check({
        "A\n== Empty ==\n{{x}}\n== B ==\n=== Empty too ===\n=== C ===\nd\n== Last ==\n": "A\nB\nC\nd",
        "== Only ==": "",
        "x = y\n==\n=\na == b ==": "x = y\na == b ==",
    })  # fmt: skip


def test_sections_that_only_point_elsewhere_are_dropped_with_their_content() -> None:
    check({
        "A\n== See also ==\n* [[x]]\n=== Under it ===\ny\n== Next ==\nB\n==External links==\n* z": "A\nNext\nB",
        "A\n=== References: ===\nx\n== '''Notes''' ==\ny\n== Notes on style ==\nB": "A\nNotes on style\nB",
    })  # fmt: skip
    check({"A\n== Legături externe ==\nx\n== Vezi și ==\ny\n== References ==\nz": "A"}, "ro")
    check({"A\n== Външни препратки ==\nz": "A"}, "bg")


def test_sections_of_links_are_known_in_each_language() -> None:
    check({"A\n== Voci correlate ==\n* x\n== Note ==\n* y\n== Altri progetti ==\nz\n== Vita ==\nb": "A\nVita\nb"}, "it")
    check({"A\n== Atsauces ==\nx\n== Ārējās saites ==\ny\n== Skatīt arī ==\nz": "A"}, "lv")
    check({"A\n== Atsauces ==\nx": "A"}, "ltg")  # falls back to Latvian
    check({"A\n== Zie ook ==\nx\n== Externe links ==\ny\n== Bronvermelding ==\nz": "A"}, "nl")
    check({"A\n== Weblinks ==\nx\n== Einzelnachweise ==\ny\n== Zie ook ==\nz": "A\nZie ook\nz"}, "de")


def test_names_of_images_and_categories_are_known_in_each_language() -> None:
    check({"[[Immagine:Cane|thumb|un [[cane]]]][[Categoria:Cani|*]][[File:Cane]][[image:Cane]]Un cane": "Un cane"}, "it")
    check({"[[Attēls:Suns|x]] [[Kategorija:Suņi]] [[Fails:Suņs]]a": "a"}, "ltg")
    check({"[[Afbeelding:Hond]][[Bestand:Hond]]a__GEENINHOUD__ __NOTOC__b__InHoud__": "a b"}, "nl")
    check({"__INDEX__ a __index__ __toc__": "a __index__"})


def test_links_to_other_wikis_and_to_categories_show_no_prefix() -> None:
    check({
        "[[wikt:parola]], [[:wikt:fr:mot]], [[:Categoria:Cani]], [[:fr:Chien]]": "parola, mot, Cani, Chien",
        "[[voy:Roma|Roma]] [[:Categoria:Cani|i cani]] [[wikt:fr:mot|mot]]": "Roma i cani mot",
        "[[Star Trek: Picard]] [[Progetto:Cani]] [[w:]]": "Star Trek: Picard Progetto:Cani w:",
    }, "it")  # fmt: skip


def test_of_a_text_in_several_scripts_the_first_is_shown() -> None:
    check({
        "在-{zh-hans:计算机; zh-hant:電腦;}-上": "在计算机上",
        "-{zh-cn:[[软件|软]]&nbsp;件;zh-tw:軟體}-": "软 件",
        "-{A|zh-hans:甲;zh-hant:乙}- -{甲}- -{R|甲}- -{|zh-hans:甲}- -{zh-hans;zh-hant|甲}-": "甲 甲 甲 甲 甲",
        "甲-{H|zh-hans:a;zh-hant:b}--{T|zh-hans:a}--{甲=>zh-cn:乙;}-": "甲乙",
        "-{zh-hans:甲-{zh-hant:丙}-;zh-hant:乙}- -{zh-hans:{{lang|en|x}};zh-hant:y}-": "甲丙 x",
        "-{{lang|en|x}}- a-{b -{": "-x- a-{b -{",
    }, "zh")  # fmt: skip
    check({"-{zh-hans:a;zh-hant:b}-": "-{zh-hans:a;zh-hant:b}-"})


def test_megabytes_of_unclosed_variants_end() -> None:
    for piece in ("-{", "}-", "-{a", "-{{", "-{zh:", "-{}", "{-"):
        source = piece * 100_000
        assert len(extract_plain_text(source, names_of("zh"))) <= len(source)


def test_what_templates_leave_between_parentheses_is_tidied() -> None:
    check({
        "Dog ({{cite|x}}) is": "Dog is",
        "Dog ({{a}}, {{b}} ; ) is": "Dog is",
        "Dog ( , born 1950 ; ) is": "Dog (born 1950) is",
        "Dog ({{a}}; a cat , {{b}}) , and . So": "Dog (a cat), and. So",
        "call main() or f( x )": "call main() or f(x)",
    })  # fmt: skip


def test_drawings_in_typewriter_style_go_and_prose_stays() -> None:
    check({
        "a\n  |--x--|   |\n ___|___\n  1     4    b\n  A sentence.  And one.\nb": "a\nA sentence. And one.\nb",
        "a\n* –\n* ~~\n* 漢\n": "a\n漢",
    })  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(MARKUP)
def test_any_markup_gives_clean_lines_not_longer_than_it(source: str) -> None:
    text = extract_plain_text(source)
    assert len(text) <= len(source)
    assert text == text.strip()
    assert "\n\n" not in text
    assert not any(control in text for control in ("\x02", "\x03", "\t"))


@settings(max_examples=100, deadline=None)
@given(
    st.text(
        alphabet=st.characters(blacklist_characters="\x02\x03<>[]{}|'=&*#:;!_()-,.\n~", whitelist_categories=("L", "N", "Zs"))
    )
)
def test_text_without_markup_keeps_its_words(source: str) -> None:
    assert extract_plain_text(source).split() == source.split()


HOSTILE = [
    "{{", "}}", "[[", "]]", "{|", "|}", "{{{", "<ref>", "<ref ", "<!--", "<pre>", "<nowiki>", "<math>", "<table>",
    "<poem>", "<div ", "<sup> ", "<", "[http:", "[http://a b ", "[http://a", "'", "(", "(,", "( ", ", ", " ,", " )",
    " ", "\t", "&", "&#", "=", "\n=", "\n==a", "_", "__A", "{{a|", "|", "{{nowrap|", "[[a|", "[[File:a|", "[[a|[[b]]",
    "{{a}}{{", "{|a|", "\n|", "\n ", "\n* ", "\x02", "[[ (|]]", "{{a|b=", "{{convert|1|", "{{nowrap|{{lang|a|",
    '<ref a="', "<span title='", "=\"'", "\n;", "\n; a [[", "\n;a:b", "[//a [", "[//a <", "\n<!--", "<!-- -->",
    "\n[[#", "[[http://a ",
    "{{#if:", "{{formatnum:1", "{{frac|", "7{{frac|1|2}}", "{{x}} ", "a {{x", "{{lang|fr|a=", "\n| a", "{{!}}", "<nowiki/>",
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_unbalanced_markup_ends(piece: str) -> None:
    """Each takes a fraction of a second; quadratic work would take hours and run into the time limit."""
    source = piece * (1_000_000 // len(piece))
    assert len(extract_plain_text(f"x{source}x")) <= len(source) + 2
    part = source[:200_000]
    assert len(extract_plain_text(part)) <= len(part)
    assert len(extract_plain_text(f"[[{part}|]] {{{{x|{part}}}}}")) <= 2 * len(part) + 12


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("opening", "closing"), [("{{", "}}"), ("[[", "]]"), ("{|", "|}"), ("<table>", "</table>"), ("{{nowrap|", "}}")]
)
def test_deep_nesting_ends(opening: str, closing: str) -> None:
    depth = 500_000 // len(opening + closing)
    assert extract_plain_text(f"a {opening * depth}{closing * depth}").startswith("a")
    assert extract_plain_text(f"a {opening * 8}x{closing * 8}b") in ("a b", "a xb", "a\nb")


def test_open_braces_in_text_of_a_script_are_read_a_bounded_number_of_times() -> None:
    """Each pair of braces once doubled the time."""
    assert extract_plain_text("-{" + "a{{" * 60, names_of("zh")).startswith("-{a")
