"""The text of templates, and of the markup around them, by the language of the wiki."""

import random

import pytest

from relm.corpus.wikipedia.markup import extract_plain_text
from relm.corpus.wikipedia.names import names_of
from relm.corpus.wikipedia.template_functions import TABLE
from relm.corpus.wikipedia.templates import templates_of

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
    ("es", "{{esd|10 km}}", "10 km"),
    ("en", "A fact.{{rp|5}} He said {{bq|It.}}", "A fact. He said It."),
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
    ("en", "{{convert|6|ft|2|in|m|2|abbr=on}} and {{convert|100|km|0}}", "6 ft 2 in and 100 km"),
    (
        "en",
        "{{convert|between|5|and|10|km}}, {{convert|3|x|4|x|5|cm}}, {{convert|12|and|15|m|ft}}",
        "between 5 and 10 km, 3 × 4 × 5 cm, 12 and 15 m",
    ),
    (
        "en",
        "{{convert|2.5|e6sqmi}}, {{convert|50|/sqmi|/km2}}, {{convert|1,234|km2}}, {{convert|98.6|F|C}}",
        "2.5 million sq mi, 50/sq mi, 1,234 km², 98.6 °F",
    ),
    (
        "en",
        "{{convert|{{formatnum:5|R}}|km}} {{nowrap|{{convert|5|km}} {{small|[[a|{{lang|fr|b}}]]}}}} [[a|{{nowrap|b c}}]]",
        "5 km 5 km b b c",
    ),
    (
        "en",
        "{{val|1.23|(4)|e=-5|u=m}}, {{val|5|+1|-2}}, {{val|10|u=km/h}}, {{val|3|up=s}}",
        "1.23(4) × 10⁻⁵ m, 5 +1 −2, 10 km/h, 3/s",
    ),
    ("en", "10{{frac|2}}, {{frac|3}}, x{{sup|2}}, H{{sub|2}}O, {{e|24}}", "10 1/2, 1/3, x², H2O, × 10²⁴"),
    (
        "en",
        "{{death date and age|1990|1|2|1950|3|4}}, {{end date|1999|12|31|df=y}}, {{birth-date|2 January 1990}}",
        "January 2, 1990 (aged 39), 31 December 1999, 2 January 1990",
    ),
    (
        "en",
        "As seen {{as of|2010|5|1|lc=y}}. {{As of|2014}}, {{as of|2010|alt=in 2010}} {{circa|1900|1910}} {{floruit|1200}}",
        "As seen as of 1 May 2010. As of 2014, in 2010 c. 1900 – c. 1910 fl. 1200",
    ),
    (
        "en",
        "{{cquote|Long quote|author}} {{quotation|1=A b = c|2=d}} {{quote|text=x [[y|z]] {{nowrap|a b}}}}",
        "Long quote A b = c x z a b",
    ),
    (
        "en",
        "{{€|5}} {{£|30 million}} {{INR|5 crore}} {{INRConvert|5|c}} {{currency|5|EUR}} {{AUD|3 million|link=yes}}",
        "€5 £30 million ₹5 crore ₹5 crore €5 A$3 million",
    ),
    (
        "en",
        "{{abbr|HTML|HyperText}} {{tooltip|a|b}} {{hover title|tip|text}} {{ill|Max M|de|Max}} {{ill|X|de|lt=label}}",
        "HTML a text Max M label",
    ),
    ("en", "{{sic}} {{sic|teh}} {{sic|hide=y|teh}} ''x''{{'s}} {{\"'}} {{' \"}}", "[sic] teh [sic] teh x's \"' '\""),
    (
        "en",
        "{{langx|ru|Россия|Rossiya|Russia}}; {{lang-ru|Россия|Rossiya}}; {{lang-la|1=a = b}}",
        "Россия, romanized: Rossiya, lit. 'Russia'; Россия, romanized: Rossiya; a = b",
    ),
    (
        "en",
        "{{zh|s=中国|p=Zhōngguó}} {{zh|c=北京|labels=no}} {{ruby|漢|かん}} {{nihongo3|cat|猫|neko}}",
        "simplified Chinese: 中国; pinyin: Zhōngguó 北京 漢(かん) neko (猫, cat)",
    ),
    (
        "en",
        "{{IPA|/a/}} {{IPA-de|a|lang}} {{IPAc-en|ˈ|æ|l|b|ə}} {{respell|AL|bə}} {{IPA|de|abc}}",
        "/a/ [a] /ˈælbə/ AL-bə [abc]",
    ),
    (
        "en",
        "{{HMS|Ajax|22}} {{ship|RMS|Titanic}} {{flag|Azores}} {{flagicon|FR}} France",
        "HMS Ajax (22) RMS Titanic Azores France",
    ),
    ("en", "{{coord|57|18|22|N|4|27|32|W}} x {{coord|1|2|display=title}}", "57°18′22″N 4°27′32″W x"),
    ("en", "a{{snd}}b a{{ndash}}b a{{mdash}}b a{{nbsp}}b a{{·}}b {{(}}z{{)}}", "a – b a–b a—b a b a · b {z}"),
    (
        "en",
        "{{formatnum:-12345}} {{formatnum:{{formatnum:12,345|R}}}} {{uc:{{lc:ABC}}}} {{#ifeq:a|a|y|n}} {{#if:|a|b}}",
        "-12,345 12,345 ABC y b",
    ),
    ("en", "{{#switch:b|a=1|b=2|3}} {{#if:{{lang|fr|x}}|yes}} {{lcfirst:ABC}}", "2 yes aBC"),
    (
        "fr",
        "{{s|XX}}, {{s-|I|er}}, {{-s-|III|e}}, {{sp|XV|e|au|XVI|e|s}}, {{S mini|XIX|e}}, {{XIXe siècle}}",
        "XXe siècle, Ier siècle, IIIe siècle av. J.-C., XVe au XVIe siècle, XIXe, XIXe siècle",
    ),
    (
        "fr",
        "{{unité|3.5|e=6|kg}}, {{unité|10|km/h}}, {{nombre|12345|habitants}}, {{unité|5|à|10|km}}, {{unité|12 345|km|2}}",
        "3,5 × 10⁶ kg, 10 km/h, 12 345 habitants, 5 à 10 km, 12 345 km²",
    ),
    (
        "fr",
        "{{date-|19 janvier}}, {{Date de naissance|11|novembre|1866}}, {{date|29 9 2019}}, {{date||janvier|1990}}",
        "19 janvier, 11 novembre 1866, 29 septembre 2019, janvier 1990",
    ),
    (
        "fr",
        "l{{'}}''x'', Otton {{Ier}}, {{1re}} et {{3e}}, {{nobr|86 ans}}, {{citation|x}}, {{langue|en|word}}, {{euro|77.80}}",
        "l'x, Otton Ier, 1re et 3e, 86 ans, « x », word, 77,80 €",
    ),
    (
        "de",
        '{{"|Zitat}} {{Höhe|1150|DE-NHN}} {{enS|word}} {{lang|la|Text}} 3{{Bruch|1|2}} {{formatnum:1234.5}}',
        "„Zitat“ 1.150 m ü. NHN word Text 3 1/2 1.234,5",
    ),
    (
        "es",
        "{{unidad|1234567|km}}, {{fecha|2|1|1990}}, {{siglo|XIX||s}}, 45{{esd}}km, {{lang-en|x}}",
        "1 234 567 km, 2 de enero de 1990, siglo XIX, 45 km, x",
    ),
    (
        "it",
        "{{TA|3 743 km²}}, {{M|1234|k|m}}, {{senza fonte|x}}, L{{'}}x, {{formatnum:4666175}}",
        "3 743 km², 1 234 km, x, L'x, 4 666 175",
    ),
    ("nl", "{{formatnum:12345}} {{citaat|x}} {{datum|2|1|1990}} {{Bron?||2019}}x", "12.345 x 2 januari 1990 x"),
    (
        "ro",
        "{{conversie|22|–|25|C|F}}, {{dată|1990|1|2}}, {{unitate|1234|km}}, 5 {{kmp}}, {{ill|X|en|Y}}",
        "22–25 °C, 2 ianuarie 1990, 1.234 km, 5 km², X",
    ),
    (
        "ru",
        "{{s|5 км}}, {{num|1234567}}, {{дата|2|1|1990}}, {{нп5|Рус|текст|en|Eng}}, {{СС|16|июня|1900|3}}, Пу{{акут}}шкин",
        "5 км, 1 234 567, 2 января 1990, текст, 3 (16) июня 1900, Пу́шкин",
    ),
    (
        "zh",
        "{{bd|1879年|3月14日|1955年|4月18日}} {{link-en|中文|English}} {{tsl|en|Eng|中文}} {{birth date|1990|1|2}}",
        "（1879年3月14日－1955年4月18日） 中文 中文 1990年1月2日",
    ),
    (
        "ja",
        "{{仮リンク|日本|en|Japan}} {{読み仮名|漢字|かんじ}} {{ルビ|漢|かん}} {{死亡年月日と没年齢|1950|3|4|1990|1|2}}",
        "日本 漢字（かんじ） 漢（かん） 1990年1月2日（39歳没）",
    ),
    ("en", "{{#expr: 7 / 2 round 1}} {{#expr: (1 + 2) * 3 mod 4}} {{#ifexpr: 2 > 1 and not 0 | yes | no}}", "3.5 1 yes"),
    ("en", "a {{#expr: {{gone}} / 2}} {{#expr:({{gone}} - 1) * 2}} {{#expr: 1 / 0}} b", "a b"),
    ("en", "a {{#expr: 9 ^ 9 ^ 9 ^ 9}} {{#expr: 1 round 10000000000}} {{#expr: (1}} {{#expr: inf}} b", "a b"),
    ("en", "Aged {{age|1990|1|2|2000|1|1}} then, {{age|1990|1|2}} now.", "Aged 9 then, now."),
    ("en", "At {{coor dm|13|19|N|169|9|W|}}, {{mpl|1988 AB|5}} ({{NYSE|AMD}})", "At 13°19′N 169°9′W, 1988 AB5 (NYSE: AMD)"),
    (
        "de",
        "({{Coordinate|text=DMS|NS=52/30/10.4/N|EW=13/24/15.1/E}}) {{Coordinate|NS=1/N|EW=2/E}} {{ZahlExp|1,2|4|post=kg}}",
        "(52° 30′ 10,4″ N, 13° 24′ 15,1″ O) 1,2 · 10⁴ kg",
    ),
    (
        "it",
        "nel Campionato maltese ({{MLT}}), Olanda ({{NED}}) o {{GER}} e {{KOR}}",
        "nel Campionato maltese (Malta), Olanda (Paesi Bassi) o Germania e Corea del Sud",
    ),
    ("it", "i 2100 {{m s.l.m.}}, {{Exp|1,9|19}} anni, {{lang-en2|x}}", "i 2100 m s.l.m., 1,9×10¹⁹ anni, x"),
    ("ja", "{{interlang|et|Harju}} {{llang|ur|اردو}} {{ar|العربية}} x", "اردو العربية x"),
]


@pytest.mark.parametrize(("language", "wikitext", "text"), MARKUP + TEMPLATES)
def test_the_text_is_what_readers_see(language: str, wikitext: str, text: str) -> None:
    assert extract_plain_text(wikitext, names_of(language)) == text


ARGUMENTS = [
    "", "1", "2", "12345", "1990", "x", "de", "-", "to", "km", "ft", "in", "a=b", "df=y", "e=6", "text=t", "ns=1/2/N", "ew=3/E",
    "1/2", "²", "٣", "N", "|", "=", "(", ")", "1 + 2 * (3 ^ 4)",
]  # fmt: skip


@pytest.mark.parametrize("language", ["simple", "xx", *TABLE["languages"]])
def test_no_arguments_stop_a_template(language: str) -> None:
    chance = random.Random(language)
    templates = templates_of(language)
    functions = [f"{name}:" for name in ("formatnum", "lc", "ucfirst", "plural", "#if", "#ifeq", "#switch", "#expr", "#ifexpr")]
    for name in [*templates.patterns, *functions, "lang-fr", "ipa-de", "xive siècle", "84e", "link-en"]:
        for count in (0, 1, 2, 3, 5, 8):
            source = f"a 7{{{{{'|'.join([name, *chance.choices(ARGUMENTS, k=count)])}}}}} b"
            text = extract_plain_text(source, names_of(language))
            assert text.startswith("a")
            assert text.endswith("b")
            assert len(text) <= len(source) + 60, source
            assert not any(mark in text for mark in "\x02\x03\x04\x0e\x1f")
