"""SQuAD files for tests: the real sample, and made paragraphs whose words, tokens and characters disagree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).resolve().parent / "data" / "squad11-sample.json"
# A paragraph, and its questions with their answers, each the first or the numbered occurrence in the paragraph.
PARAGRAPHS: list[tuple[str, list[tuple[str, list[tuple[str, int]]]]]] = [
    (
        "The leader was John Smith (1895-1943). His wife, Zoë Smith-Brontë, wrote: 'the Smiths' of 1895.",
        [
            ("What year was John Smith born?", [("1895", 0), ("1895", 1)]),
            ("Who was his wife?", [("Zoë Smith-Brontë", 0), ("Zoë", 0)]),
            ("What did she write?", [("the Smiths", 0)]),
            ("Who lead?", [("ohn Smit", 0)]),
        ],
    ),
    (
        "In  both\tcountries\nit was clearer\u202fthan crystal\u00a0to the lords of the State preserves of loaves and fishes, "
        "that things in general were settled for ever. It was the best of times, it was the worst of times, it was the age of "
        "wisdom, it was the age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season "
        "of Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair.",
        [
            ("What was clearer?", [("it", 0), ("than crystal\u00a0to", 0)]),
            ("Of what was it the age, the epoch, the season, the spring and the winter, and of which things?", [("it was", 3)]),
            ("For how long?", [("for ever.", 0), ("settled for ever", 0)]),
            ("Which season was it at last?", [("the winter of despair.", 0), ("winter", 0)]),
        ],
    ),
    (
        " Ångström's constant is 3,14 % of Straße 5; 東京 is a capital\u200b city, naïvely so… C'est l'été — d'accord?!",
        [
            ("Which constant?", [("Ångström's", 0), ("Ångström", 0)]),
            ("How much?", [("3,14 %", 0), ("14", 0)]),
            ("Which capital?", [("東京", 0), ("京", 0)]),
            ("Which season?", [("été", 0), ("l'été", 0)]),
            ("Which street?", [("Straße 5", 0)]),
        ],
    ),
]


def made_file() -> dict[str, Any]:
    """Return the made paragraphs in SQuAD's format."""
    paragraphs = []
    for number, (context, asked) in enumerate(PARAGRAPHS):
        questions = []
        for index, (question, answers) in enumerate(asked):
            marked = [{"text": text, "answer_start": _offset(context, text, which)} for text, which in answers]
            questions.append({"id": f"{number}-{index}", "question": question, "answers": marked})
        paragraphs.append({"context": context, "qas": questions})
    return {"version": "1.1", "data": [{"title": "Made", "paragraphs": paragraphs}]}


def misplaced_file() -> dict[str, Any]:
    """Return a file with one answer that is not where it says."""
    content = made_file()
    content["data"][0]["paragraphs"][0]["qas"][3]["answers"][0]["answer_start"] = 60
    return content


def sample_file() -> dict[str, Any]:
    """Return the real sample."""
    content: dict[str, Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))
    return content


def _offset(context: str, text: str, which: int) -> int:
    offset = -1
    for _ in range(which + 1):
        offset = context.index(text, offset + 1)
    return offset


FILES: dict[str, Callable[[], dict[str, Any]]] = {"sample": sample_file, "made": made_file, "misplaced": misplaced_file}
