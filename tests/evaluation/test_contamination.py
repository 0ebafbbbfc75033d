import json
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glue_files import EXAMPLES, write_parquet
from relm.cli import main
from relm.errors import RelmError
from relm.evaluation.choices.choice_formats import READERS
from relm.evaluation.contamination import count_contamination, find_passage
from relm.evaluation.evaluated_items import Item, read_items
from relm.recipes.datasets import load_dataset
from relm.recipes.evaluation.protocol_options import MultipleChoice
from relm.recipes.evaluation.published_tests import ITEM_FORMATS, load_test
from relm.recipes.parts_of_recipe import require_countable_tests
from relm.recipes.recipe import load_recipe
from relm.reporting.figures import describe_contamination
from small_documents import write_texts

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


def lambada(folder: Path, *passages: str) -> Path:
    path = folder / "lambada.jsonl"
    path.write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages))
    return path


def counted(folder: Path, file: Path, form: str, documents: list[Path], **options: Any) -> dict[str, Any]:
    output = folder / "counted.json"
    count_contamination(file, form, documents, output, **options)
    return dict(json.loads(output.read_text()))


def test_shared_items_are_counted_and_shown_with_their_document(tmp_path: Path) -> None:
    passages = [LONG, f"{SEVEN} sing", SEVEN, "No document has this one passage of more than eight words"]
    file = lambada(tmp_path, *passages)
    filler = "words that come before and after in a long document " * 20
    texts = ["nothing", f"{filler}“{LONG.upper()}”! {filler}", f"{SEVEN}: sing...", LONG]
    documents = write_texts(tmp_path / "a.train.jsonl", texts, title="Page ")
    found = counted(tmp_path, file, "lambada", [documents])
    assert found["figures"] == {
        "items": 4,
        "shared_items": 2,
        "share": 0.5,
        "short_items": 2,
        "shared_short_items": 1,
        "too_short": 1,
        "documents": 4,
        "sharing_documents": 3,
        "words": sum(len(text.replace("...", "").split()) for text in texts),
    }
    first, second = found["samples"]
    assert (first["item"], first["document"], first["title"]) == ("line 1", "a.train.jsonl, line 2", "Page 1")
    assert first["words"] == "he took the oars and began to row across the dark lake toward the light of the village"
    assert LONG.upper()[:60] in first["passage"]
    assert first["passage"][0] == first["passage"][-1] == "…"
    assert second["words"] == "he took the oars and began to sing"
    assert found["protocol"]["documents"].keys() == {"a.train.jsonl"}


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
        "blimp": json.dumps({"sentence_good": "It rains.", "sentence_bad": "It rain.", "UID": "agreement"}),
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
        "blimp": [("line 1", (" It rains.", " It rain."))],
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
        assert read_items(file, None, form, "text")[0] == [Item(*item) for item in expected[form]], form


@pytest.mark.parametrize("task", EXAMPLES)
def test_the_items_of_glue_are_the_texts_of_each_row(task: str, tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "dev.parquet", task)
    texts = [tuple(text for text in row[:-1] if text) for row in EXAMPLES[task]]
    found, _ = read_items(file, None, "glue", "text")
    assert found == [Item(f"row {number}", text) for number, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"label": [1]}, "has no text; give a GLUE file"), ({"sentence": pa.array([], pa.string())}, "has no text; give a")],
)
def test_a_file_without_texts_of_glue_is_refused(columns: dict[str, object], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "dev.parquet")
    with pytest.raises(RelmError, match=message):
        read_items(tmp_path / "dev.parquet", None, "glue", "text")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na\t1\n")
    with pytest.raises(RelmError, match="damaged, or not Parquet"):
        read_items(tmp_path / "dev.tsv", None, "glue", "text")


def test_what_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    documents = write_texts(tmp_path / "a.jsonl", ["nothing"])
    with pytest.raises(RelmError, match="none of its 1 items has a text of 8 words or more"):
        counted(tmp_path, lambada(tmp_path, SEVEN), "lambada", [documents])
    file = lambada(tmp_path, LONG)
    with pytest.raises(RelmError, match="expected 0000"):
        counted(tmp_path, file, "lambada", [documents], file_sha256="0" * 64)
    with pytest.raises(RelmError, match=r"line 1: passage is missing; lambada\.text_key of the test's file names"):
        counted(tmp_path, file, "lambada", [documents], text_key="passage")
    with pytest.raises(RelmError, match=r"empty\.jsonl: no documents; give those that the model was trained on"):
        counted(tmp_path, file, "lambada", [write_texts(tmp_path / "empty.jsonl", [])])
    documents.write_text(documents.read_text() + "\n")
    with pytest.raises(RelmError, match=r"a\.jsonl: has \d+ bytes, its sidecar says"):
        counted(tmp_path, file, "lambada", [documents])


def test_a_passage_is_found_through_case_and_punctuation() -> None:
    document = f"{'x' * 300} He said: “Well-known, É!” {'y' * 300}"
    assert find_passage(["said", "well", "known", "é"], document).strip("…").strip("xy ") == "He said: “Well-known, É!”"
    assert find_passage(["not", "there"], document) == "not there"


def test_the_command_says_how_many_and_refuses_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = lambada(tmp_path, LONG, f"{SEVEN} sing"), tmp_path / "out" / "lambada.json"
    documents = write_texts(tmp_path / "a.jsonl", ["nothing", LONG])
    words = [
        "contamination",
        "--format",
        "lambada",
        "--file",
        str(file),
        "--documents",
        str(documents),
        "--output",
        str(output),
    ]
    assert main(words) == 0
    assert "1 of 2 items (50.00%) share 13 words with 1 of 2 documents; 0 items are too short" in capsys.readouterr().out
    assert (tmp_path / "out" / "lambada.json.record.json").exists()
    assert main([*words[:-1], str(tmp_path / "again.json"), "--sha256", f"{file.name}={'1' * 64}"]) == 1
    assert "Traceback" not in (said := capsys.readouterr().err)
    assert "expected 1111" in said
    assert not (tmp_path / "again.json").exists()


def test_a_recipe_without_tests_or_texts_is_refused(checkout: Path) -> None:
    recipes = checkout / "recipes"
    plain = load_recipe(recipes / "quickstart.yaml")
    recipe, path = plain.model_copy(update={"contamination": True}), Path("mine.yaml")
    texts, tokens = (load_dataset(recipes / "data" / f"{name}.yaml") for name in ("wikitext_2_raw", "openwebtext_gpt2"))
    test = load_test(recipes / "evaluations" / "lambada.yaml")
    require_countable_tests(path, recipe, texts, {"lambada": test}, {})
    require_countable_tests(path, plain, tokens, {}, {})
    with pytest.raises(RelmError, match=r"mine\.yaml: contamination: true: evaluate names no published test"):
        require_countable_tests(path, recipe, texts, {}, {})
    with pytest.raises(RelmError, match=r"contamination: true: needs documents, and .* has tokens \(nanogpt_tokens\)"):
        require_countable_tests(path, recipe, tokens, {"lambada": test}, {})
    other = test.model_copy(update={"protocol": "of_an_extension"})
    with pytest.raises(RelmError, match="cannot read items of the protocol of_an_extension, which mine has"):
        require_countable_tests(path, recipe, texts, {"mine": other}, {})


def test_the_report_has_a_sentence_on_the_counts(tmp_path: Path) -> None:
    documents = write_texts(tmp_path / "a.jsonl", ["nothing", LONG])
    found = describe_contamination(counted(tmp_path, lambada(tmp_path, LONG, SEVEN), "lambada", [documents]))
    assert found.sentence == (
        "1 of 2 items (50.00%) share 13 words in a row with the training documents, 1 of them too short to be sought; "
        "1 of 2 documents have such words."
    )
