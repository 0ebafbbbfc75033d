import hashlib
from pathlib import Path

import pytest
from published_texts import gpt2_tokenizer, unpacked

from relm.evaluation.detokenisers import DETOKENISERS, WIKITEXT, wikitext
from relm.evaluation.text_perplexity import prepare_text
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.recipes.evaluation.protocol_options import TextPerplexity


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("the Beatles ' song", "the Beatles' song"),
        ("/' 5/", "/'[0-9]/"),  # the slashes were meant to delimit a pattern
        ("rock ' 90s", "rock ' 90s"),  # so it does not match its intended text
        ("well @-@ known", "well-known"),
        ("1 @,@ 000", "1,000"),
        ("3 @.@ 14", "3.14"),
        ("as follows : one", "as follows: one"),
        ("one ; two", "one; two"),
        ("done . Then", "done. Then"),
        ("Oh ! Then", "Oh! Then"),
        ("What ? Then", "What? Then"),
        ("one , two", "one, two"),
        ("the end .", "the end ."),  # nothing follows it
        ("an ( odd ) one", "an (odd) one"),
        ("an [ odd ] one", "an [odd] one"),
        ("an { odd } one", "an {odd} one"),
        ('an " odd " one', 'an "odd" one'),
        ("an ' odd ' one", "an 'odd' one"),
        ("( not\n closed", "( not\nclosed"),
        ("a ( b\n\n c ) d", "a (b\n\nc) d"),
        (" = = = = Deep = = = = ", " ==== Deep ==== "),
        (" = = = Third = = = ", " === Third === "),
        (" = = Second = = ", " == Second == "),
        ("10 ° C", "10°C"),
        ("end \n", "end\n"),
        ("\n begin", "\nbegin"),
        ("N N N", "N 1 N"),
        ("the band 's song", "the band's song"),
    ],
)
def test_a_rule(before: str, after: str) -> None:
    assert wikitext(before) == after


def test_rules_are_applied_in_order() -> None:
    # An apostrophe is first joined to its word, and then taken for the first of two quotation marks.
    assert wikitext("the Beatles ' song is ' odd") == "the Beatles'song is' odd"
    # Space at a line's end is removed before that at the next line's beginning.
    assert wikitext("a \n \n b") == "a\n\nb"
    assert wikitext(' \n = Robert <unk> = \n \n He said : " No , 1 @,@ 000 . " \n') == (
        '\n= Robert <unk> =\n\nHe said: "No, 1,000."\n'
    )
    assert len(WIKITEXT) == 24


def test_none_changes_nothing() -> None:
    assert DETOKENISERS["none"](" a , b \n") == " a , b \n"
    assert set(DETOKENISERS) == set(TextPerplexity.model_fields["detokeniser"].annotation.__args__)


@pytest.fixture(scope="module")
def gpt2(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    return load_tokenizer(gpt2_tokenizer(shared_data, tmp_path_factory.mktemp("gpt2")))


@pytest.mark.parametrize(
    ("name", "size", "sha256", "rows", "words", "parts", "tokens", "ratio"),
    [
        ("wikitext-103/wiki.test.tokens", 1_281_077, "56db52eb", 4358, 241_211, 245_566, 270_330, 1.100845),
        ("wikitext-103/wiki.valid.tokens", 1_142_309, "9aee9f52", 3760, 213_886, 217_642, 236_892, 1.088448),
        ("wikitext-2/wiki.test.tokens", 1_256_449, "d790b833", 4358, 241_211, 245_566, 278_365, 1.133565),
    ],
)
def test_wikitext_has_the_published_counts(
    name, size, sha256, rows, words, parts, tokens, ratio, shared_data: Path, tmp_path: Path, gpt2: LoadedTokenizer
) -> None:
    content = unpacked(shared_data, name, tmp_path).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()[:8]) == (size, sha256)
    text = content.decode()
    assert (text.count("\n"), len(text.split())) == (rows, words)
    options = TextPerplexity(detokeniser="gpt2_wikitext", words="single_spaces")
    prepared = prepare_text(text, gpt2, options, None)
    assert (prepared.tokens, prepared.words, prepared.bytes) == (tokens, parts - 1, size)
    assert prepared.targets == tokens - 1
    assert prepared.targets / prepared.words == pytest.approx(ratio, abs=5e-7)
