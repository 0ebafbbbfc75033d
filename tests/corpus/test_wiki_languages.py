"""Reject a dump of another wiki than the dataset's language, however it is read."""

from pathlib import Path

import pytest

from relm.corpus import extract as extraction
from relm.corpus.extract import extract
from relm.corpus.wikipedia.languages import is_same_language
from relm.errors import RelmError
from small_dumps import articles, dataset, page, written


def stated(content: str, attribute: str) -> str:
    """Return a dump with other attributes in its first tag."""
    changed = content.replace('xml:lang="en"', attribute)
    assert changed != content or attribute == 'xml:lang="en"'
    return changed


def read(folder: Path, content: str, language: str, workers: int = 1) -> str:
    outputs = {split: folder / f"{split}.jsonl" for split in ("train", "held_out")}
    chosen = dataset("dump.xml", language=language, held_out_one_in=3)
    return extract(chosen, written(folder, content), outputs, None, workers)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_dump_in_another_language_is_refused(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "BYTES_PER_WORKER", 100)
    content = stated(articles(60), 'xml:lang="ro"')
    assert "extracted" in read(tmp_path, content, "ro", workers)
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(RelmError) as refusal:
        read(tmp_path, content, "en", workers)
    message = str(refusal.value)
    assert message.startswith(str(tmp_path / "dump.xml"))
    assert "expected a dump in the dataset's language, 'en', found xml:lang='ro'; correct the source" in message
    assert message.endswith("set `language: ro` in the dataset's file")
    assert not (tmp_path / "train.jsonl").exists()


@pytest.mark.parametrize("attribute", ["", 'xml:lang=""'])
def test_a_dump_that_states_no_language_is_read(attribute: str, tmp_path: Path) -> None:
    assert "extracted 60 documents" in read(tmp_path, stated(articles(60), attribute), "ro")


def test_an_old_dump_states_its_language_too(tmp_path: Path) -> None:
    pages = "".join(page(f"Title {number}", "Some text.", number, ns=None) for number in range(20))
    content = (
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/" version="0.3" xml:lang="als">\n{pages}</mediawiki>\n'
    )
    assert "extracted 20 documents" in read(tmp_path, content, "gsw")
    with pytest.raises(RelmError, match=r"'de', found xml:lang='als'; .*set `language: gsw`"):
        read(tmp_path, content, "de")


@pytest.mark.parametrize("language", ["und", "mul"])
def test_a_dataset_of_no_one_language_reads_any_dump(language: str, tmp_path: Path) -> None:
    assert "extracted 60 documents" in read(tmp_path, articles(60), language)


@pytest.mark.parametrize(
    ("wiki", "language"),
    [
        ("simple", "en"), ("en", "en-GB"), ("als", "gsw"), ("gsw", "als"), ("zh-yue", "yue"), ("nb", "no"), ("no", "nb"),
        ("sr", "sr-Latn"), ("sr-ec", "sr"), ("zh", "zh-Hant"), ("roa-tara", "roa-tara"), ("nap-x-tara", "roa-tara"),
        ("be-x-old", "be-tarask"), ("zh-min-nan", "nan"), ("RO", "ro"),
    ],
)  # fmt: skip
def test_a_language_has_several_codes(wiki: str, language: str) -> None:
    assert is_same_language(wiki, language)


@pytest.mark.parametrize(("wiki", "language"), [("yue", "zh"), ("nn", "no"), ("sh", "sr"), ("gsw", "de"), ("roa-tara", "ro")])
def test_neighbouring_languages_are_others(wiki: str, language: str) -> None:
    assert not is_same_language(wiki, language)
