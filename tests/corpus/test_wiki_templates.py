"""The text of templates, and of the markup around them, by the language of the wiki."""

import pytest

from relm.corpus.wikipedia.markup import extract_plain_text
from relm.corpus.wikipedia.names import names_of

MARKUP = [
    ("en", 'A sea.<ref name="x>y" /> B end.', "A sea. B end."),
    ("en", 'x <span title="a>b">y</span> z', "x y z"),
    ("en", "x <span title='a/>b' class=c>y</span>, a<ref name='a/'>note</ref> b", "x y, a b"),
    ("en", 'a<br title="x>y"/>b <references group="a>b"/>c', "a\nb c"),
    ("en", 'a<ref name="open>b</ref> c "d" e<ref name=O\'Brien>f\'s</ref> g', 'a c "d" e g'),
    ("en", "[[File:m.jpg|thumb|M]] The village had {{x}} {{y}} 300 people.", "The village had 300 people."),
    ("en", "<nowiki/> The pipe | is a character.", "The pipe | is a character."),
    ("en", "{{gone}} Dash --- here.", "Dash --- here."),
    ("en", "One\n{{gone}}\nTwo {{gone}}   {{gone}} ___ three", "One\nTwo ___ three"),
    ("en", "| A bar begins | this line.\n! It | is one.", "| A bar begins | this line.\n! It | is one."),
    ("en", " The pipe | of an indented line --- stays.", "The pipe | of an indented line --- stays."),
]

TEMPLATES = [
    # numbers
    ("en", "Pop. {{formatnum:12345}} people.", "Pop. 12,345 people."),
    ("fr", "{{formatnum:1234567}} habitants", "1 234 567 habitants"),
    ("de", "{{formatnum:1234567.8}} Einwohner", "1.234.567,8 Einwohner"),
    ("es", "{{formatnum:1234}} y {{formatnum:12345}}", "1234 y 12 345"),
    ("en", "{{formatnum:1,234.5|R}}", "1234.5"),
    ("en", "It cost {{US$|5 million}}.", "It cost US$5 million."),
    ("en", "{{convert|5|ft|6|in|m}} tall; {{convert|10|lb|4|oz}}", "5 ft 6 in tall; 10 lb 4 oz"),
    ("en", "{{convert|5|to|10|km|mi}}, {{cvt|2|x|3|m}}, {{convert|1+1/2|mi}}", "5 to 10 km, 2 × 3 m, 1 1/2 mi"),
    ("en", "7{{frac|1|2}} in and {{frac|7|1|2}}, {{sfrac|3|4}}", "7 1/2 in and 7 1/2, 3/4"),
    ("en", "{{val|3.5|e=6|u=kg}}, {{val|12345}}, {{val|5|2|ul=m/s}}", "3.5 × 10⁶ kg, 12,345, 5 ± 2 m/s"),
    # languages
    ("en", "'''Vienna''' ({{langx|de|Wien}}) is", "Vienna (Wien) is"),
    ("en", "{{translit|ja|neko}} {{transliteration|ja|hepburn|inu}} {{script|Cyrl|Да}}", "neko inu Да"),
    ("en", "{{nihongo|Tokyo|東京|Tōkyō}} {{lang|fr|jour|italic=no}}", "Tokyo (東京, Tōkyō) jour"),
    # dates and centuries
    ("en", "Born {{birth date|1990|1|2}} in", "Born January 2, 1990 in"),
    ("en", "{{birth date and age|df=yes|1990|1|2}}, {{start date|1990|5}}", "2 January 1990, May 1990"),
    ("en", "{{dts|1990|1|2}}", "January 2, 1990"),
    ("fr", "au {{s-|XIX|e}}, aux {{s2-|XVI|e|XVII|e}}", "au XIXe siècle, aux XVIe et XVIIe siècles"),
    ("fr", "le {{date|1|janvier|1990}} et {{unité|5|km}}", "le 1er janvier 1990 et 5 km"),
    # quotations
    ("en", "They said {{quote|text=Said it.|author=A}}", "They said Said it."),
    ("en", "{{Blockquote|text=Para.}}", "Para."),
    # parser functions
    ("en", "{{lc:ABC}} {{uc:abc}} {{ucfirst:abc}} {{plural:2|page|pages}} {{#if:x|yes|no}}", "abc ABC Abc pages yes"),
    ("en", "{{nowrap|a {{=}} b}} x{{!}}y it{{'}}s", "a = b x|y it's"),
]  # fmt: skip


@pytest.mark.parametrize(("language", "wikitext", "text"), MARKUP + TEMPLATES)
def test_the_text_is_what_readers_see(language: str, wikitext: str, text: str) -> None:
    assert extract_plain_text(wikitext, names_of(language)) == text
