import json
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glue_files import EXAMPLES, write_parquet
from relm.errors import RelmError
from relm.evaluation.choices.choice_formats import READERS
from relm.evaluation.evaluated_items import Item, read_items, read_sought
from relm.recipes.datasets import load_dataset
from relm.recipes.evaluation.protocol_options import MultipleChoice
from relm.recipes.evaluation.published_tests import ITEM_FORMATS, load_test
from relm.recipes.parts_of_recipe import require_countable_tests
from relm.recipes.recipe import Removal, load_recipe

SEVEN = "He took the oars and began to"
LONG = f"{SEVEN} row across the dark lake, toward the light of the village"


def _asked(name: str, question: str) -> dict[str, object]:
    return {"id": name, "question": question, "answers": [{"text": "A", "answer_start": 0}]}


SQUAD = {
    "data": [
        {
            "paragraphs": [
                {"context": LONG, "qas": [_asked("q1", "Who rows?"), _asked("q2", "Where to?")]},
                {"context": "Another paragraph.", "qas": [_asked("q3", "What of it?")]},
            ]
        }
    ]
}


def test_the_formats_are_those_of_the_protocols() -> None:
    choices = get_args(MultipleChoice.model_fields["format"].annotation)
    others = {"lambada", "text", "squad", "glue"}
    assert set(ITEM_FORMATS) == {*others, *READERS} == {*others, *choices}


def test_items_have_the_texts_that_a_model_sees(tmp_path: Path) -> None:
    file = tmp_path / "test"
    hellaswag = {
        "activity_label": "Rowing",
        "ctx_a": "A man",
        "ctx_b": "he",
        "ctx": "A man he",
        "endings": ["rows.", "[title] sits.", "eats.", "is."],
        "label": 0,
    }
    contents = {
        "hellaswag": json.dumps(hellaswag),
        "piqa": json.dumps({"goal": "Row", "sol1": "with oars", "sol2": "with air", "label": 0}),
        "text": " = Title = \n\n A paragraph . \n",
        "squad": json.dumps(SQUAD),
    }
    expected = {
        "hellaswag": [
            (
                "line 1",
                (
                    *(f"Rowing: A man He {ending}" for ending in ("rows.", " sits.", "eats.", "is.")),
                    *(f"A man he {ending}" for ending in ("rows.", "[title] sits.", "eats.", "is.")),
                ),
            )
        ],
        "piqa": [("line 1", ("Question: Row\nAnswer: with oars", "Question: Row\nAnswer: with air"))],
        "text": [("line 1", (" = Title = ",)), ("line 3", (" A paragraph . ",))],
        "squad": [
            ("question q1", (LONG, "Who rows?")),
            ("question q2", (LONG, "Where to?")),
            ("question q3", ("Another paragraph.", "What of it?")),
        ],
    }
    for form, content in contents.items():
        file.write_text(content)
        assert read_items(file, form, "text")[0] == [Item(*item) for item in expected[form]], form


@pytest.mark.parametrize("task", EXAMPLES)
def test_the_items_of_glue_are_the_texts_of_each_row(task: str, tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "dev.parquet", task)
    texts = [tuple(text for text in row[:-1] if text) for row in EXAMPLES[task]]
    found, _ = read_items(file, "glue", "text")
    assert found == [Item(f"row {number}", text) for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"label": [1]}, "has no text; give a GLUE file"), ({"sentence": pa.array([], pa.string())}, "has no text; give a")],
)
def test_a_file_without_texts_of_glue_is_refused(columns: dict[str, object], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "dev.parquet")
    with pytest.raises(RelmError, match=message):
        read_items(tmp_path / "dev.parquet", "glue", "text")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na\t1\n")
    with pytest.raises(RelmError, match="damaged, or not Parquet"):
        read_items(tmp_path / "dev.tsv", "glue", "text")


def test_a_test_without_a_passage_to_look_for_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lambada.jsonl"
    file.write_text(json.dumps({"text": SEVEN}) + "\n")
    with pytest.raises(RelmError, match="none of its 1 items has a text of 8 words or more"):
        read_sought(file, "lambada", "text")
    with pytest.raises(RelmError, match=r"line 1: passage is missing; lambada\.text_key of the test's file names"):
        read_sought(file, "lambada", "passage")


def test_a_recipe_without_texts_or_readable_items_is_refused(checkout: Path) -> None:
    recipes, path = checkout / "recipes", Path("mine.yaml")
    plain = load_recipe(recipes / "quickstart.yaml")
    recipe = plain.model_copy(update={"data": plain.data.model_copy(update={"remove": Removal(duplicates=True)})})
    texts, tokens = (load_dataset(recipes / "data" / f"{name}.yaml") for name in ("wikitext_2_raw", "openwebtext_gpt2"))
    test = load_test(recipes / "evaluations" / "lambada.yaml")
    require_countable_tests(path, recipe, texts, {"lambada": test})
    require_countable_tests(path, plain, tokens, {})
    with pytest.raises(RelmError, match=r"data\.remove: needs documents, and .* has tokens \(nanogpt_tokens\)"):
        require_countable_tests(path, recipe, tokens, {"lambada": test})
    other = test.model_copy(update={"protocol": "of_an_extension"})
    with pytest.raises(RelmError, match="cannot read items of the protocol of_an_extension, which mine has"):
        require_countable_tests(path, recipe, texts, {"mine": other})
