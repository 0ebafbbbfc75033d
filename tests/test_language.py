"""Habits of translated English, long sentences and subjects of commits are found, and good English is not."""

from pathlib import Path

import pytest

import language
from language import Hit

GOOD = """There is no recipe of this name; is no longer there; a stand-alone program, let alone two; told apart;
connection refused; its own file; so long as it runs; was no more than noise."""
BAD = ["beside", "is\n    no file", "is refused", "of its own", "was told", "so many", "anew", "alone"]


def test_each_habit_is_found_and_good_english_is_not() -> None:
    assert list(language.find_habits(GOOD)) == []
    assert [habit for text in BAD for habit, _ in language.find_habits(f"\nIt {text}.")] == list(language.HABITS)
    assert list(language.find_habits("One line\nbeside another")) == [("beside", 2)]


def test_a_long_sentence_is_found_where_it_begins() -> None:
    long = "word " * 40 + "end."
    assert list(language.find_long_sentences(f"A title\n\nShort. {long}\n")) == [(language.LONG, 3)]
    assert list(language.find_long_sentences(f"```\n{long}\n```\n| {'word ' * 30} | {'word ' * 30} |\n")) == []


def test_a_count_that_rises_names_the_new_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "list_added_lines", lambda: {("docs/a.md", 7)})
    hits = [Hit("docs", "anew", "docs/a.md", line) for line in (3, 7)]
    assert list(language.judge_habits(hits, {("docs", "anew"): 2})) == []
    assert list(language.judge_habits(hits, {("docs", "anew"): 1})) == ["docs/a.md:7: 'anew': 2 in docs, expected at most 1"]


def test_the_larger_side_of_a_merge_conflict_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts = tmp_path / "habits.txt"
    counts.write_text("<<<<<<< ours\nso many  3 0 9\n=======\nso many  1 2 9\n>>>>>>> theirs\n")
    monkeypatch.setattr(language, "COUNTS", counts)
    assert language.read_counts() == {("src", "so many"): 3, ("tests", "so many"): 2, ("docs", "so many"): 9}


SUBJECTS = {
    "Reject gradients that cannot be clipped": True,
    "Pass masks by keyword": True,
    "Speed up the plan": True,
    "Merge a branch whose subject is far longer than seventy-two characters, which git wrote": True,
    "A method that nothing calls": False,
    "Removed a method": False,
    "Tests of workers": False,
    "docs: fix a link": False,
    "Reject " + "gradients " * 7: False,
}


@pytest.mark.parametrize(("subject", "good"), SUBJECTS.items())
def test_a_subject_is_a_short_imperative(subject: str, good: bool) -> None:
    assert (language.judge_subject(subject) is None) == good
