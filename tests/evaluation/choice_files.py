"""Small files in the formats of multiple-choice tests, written for these tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def hellaswag(label: str, a: str, b: str, endings: Sequence[str], answer: int) -> dict[str, Any]:
    """Return a line of HellaSwag's file."""
    context = f"{a} {b}" if b else a
    return {"activity_label": label, "ctx_a": a, "ctx_b": b, "ctx": context, "endings": list(endings), "label": answer}


HELLASWAG = [
    hellaswag("Rowing", "Two men sit in a boat.", "they", ["row to the shore.", "eat the oars.", "are a fish.", "sing é."], 0),
    hellaswag(
        "Baking bread",
        "[header] How to bake bread [title] Mix flour and water. [step] Wait until the dough has  risen to twice its size.",
        "",
        ["[substeps] Bake it at once.", "Then throw it away. [title] Buy some.", "Read a book.", "Wait again, for it is late."],
        3,
    ),
    hellaswag("Walking", "A dog runs.", "it", ["barks", "barks at the man who has the ball in his hand", "sleeps", "flies"], 1),
]
ARC = [
    {
        "id": "1",
        "question": "Which of these is a solid at room temperature?",
        "choices": {"text": ["water", "iron", "air"], "label": ["1", "2", "3"]},
        "answerKey": "2",
    },
    {
        "id": "2",
        "question": "What do plants need to grow?",
        "choices": {"text": ["light", "darkness", "noise", "sand alone"], "label": ["A", "B", "C", "D"]},
        "answerKey": "A",
    },
]
PIQA = [
    {"goal": "To open a jar,", "sol1": "turn its lid.", "sol2": "freeze the table.", "label": 0},
    {"goal": "How do you dry a shirt?", "sol1": "Put it into a bucket of water.", "sol2": "Hang it in the sun.", "label": 1},
]
ROWS: dict[str, list[dict[str, Any]]] = {"hellaswag": HELLASWAG, "arc": ARC, "piqa": PIQA}
TASKS = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "arc": "arc/arc_easy.yaml",
    "piqa": "piqa/piqa.yaml",
}


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write a JSON object on each line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
