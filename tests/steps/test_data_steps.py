"""Commands by hand up to examples: their options build the document that the graph passes as --job."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import sha256_of, write_json
from relm.corpus import extract as extraction
from relm.errors import RelmError
from relm.plan import data_jobs
from relm.recipes.datasets import load_dataset
from relm.recipes.identity import documents_identity, given, stored_identity
from relm.recipes.jobs import LISTED_FILES, DocumentsJob
from relm.recipes.objectives import Objective
from relm.recipes.project import Project
from relm.recipes.recipe import TokenizerChoice
from relm.steps import list_steps
from relm.steps.data import document_of_dataset, document_of_training, extract
from relm.steps.examples import document_of_examples
from relm.steps.parser import Parser
from small_project import Commands

TEXTS = "title: Texts\nlicence: MIT\nlanguage: en\nformat: text_files\nfolder: texts\npattern: '*.txt'\n"

MANY = {
    "title": "M",
    "licence": "MIT",
    "language": "en",
    "format": "json_lines",
    "text_key": "text",
    "held_out_files": ["0.jsonl"],
}


PREGENERATE = ("pregenerate", "--tokenizer", "t", "--documents", "d", "--output", "o")


def parsed(*words: str) -> Namespace:
    """Return the arguments of a command."""
    return Parser(list_steps()).parse_args(list(words))


@pytest.mark.parametrize(
    ("flags", "choice"),
    [
        (["--vocabulary-size", "400"], {"train": "byte_level_bpe", "vocabulary_size": 400}),
        (
            ["--train", "wordpiece", "--vocabulary-size", "300", "--lower-case", "true", "--training-bytes", "7"],
            {"train": "wordpiece", "vocabulary_size": 300, "lower_case": True, "training_bytes": 7},
        ),
        (["--train", "characters", "--special-tokens", "false"], {"train": "characters", "special_tokens": False}),
    ],
)
def test_flags_describe_the_tokenizer_of_a_recipe(flags: list[str], choice: dict[str, Any]) -> None:
    document = document_of_training(parsed("train-tokenizer", "--documents", "d", "--output", "o", *flags))
    assert document == {"revision": 1, **given(TokenizerChoice.model_validate(choice))}


@pytest.mark.parametrize(
    ("flags", "phase"),
    [
        ([], {"objective": "causal", "sequence_length": 8, "causal": {"stride": 1}}),
        (
            ["--objective", "masked", "--sequence-length", "128", "--masked", "{packing: sentence_pairs}"],
            {"objective": "masked", "sequence_length": 128, "masked": {"packing": "sentence_pairs", "probability": 0.3}},
        ),
        (
            [
                *("--objective", "masked", "--sequence-length", "64", "--language", "ro"),
                *("--masked", "{masks: static, whole_words: true}", "--as-published", "{builder: tpu_pretrain}"),
            ],
            {
                "objective": "masked",
                "sequence_length": 64,
                "masked": {"masks": "static", "whole_words": True},
                "as_published": {"builder": "tpu_pretrain"},
            },
        ),
        (
            ["--objective", "seq2seq", "--seq2seq", "{texts: documents}", "--language", "ro"],
            {"objective": "seq2seq", "sequence_length": 256, "seq2seq": {"texts": "documents"}},
        ),
    ],
)
def test_flags_describe_the_examples_of_a_recipes_phase(flags: list[str], phase: dict[str, Any]) -> None:
    language = "ro" if "ro" in flags else "en"
    assert document_of_examples(parsed(*PREGENERATE, *flags)) == stored_identity(Objective.model_validate(phase), language)


def test_a_datasets_file_describes_the_documents_of_the_recipes_that_name_it(
    project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    job = Project().plan("tiny").documents_job
    dataset = load_dataset(Path("recipes/data/sample.yaml"))
    found = document_of_dataset(dataset, source=Path("sample.xml"), pattern=None, limit=None)
    assert found == job.passed_document("sample.xml")


TRAIN = ("train-tokenizer", "--documents", "d", "--output", "o")
IMPORT = ("import-tokenizer", "--files", "vocab.txt", "--kind", "bert_wordpiece_uncased", "--output", "o")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["extract", "--source", "s", "--train", "t", "--held-out", "h"], "expected --dataset FILE, or --job"),
        ([*TRAIN], "vocabulary_size: train: byte_level_bpe needs one, such as 1024"),
        ([*TRAIN, "--vocabulary-size", "9"], "  vocabulary_size: expected greater than 256; found 9"),
        ([*TRAIN, "--vocabulary-size", "999", "--lower-case", "true"], "lower_case: read with train: wordpiece only, found"),
        ([*IMPORT[:-1], "imported-0123456789ab/tokenizer.json"], "is in the folder of key 0123456789ab"),
        (["import-tokenizer", "--files", "f", *IMPORT[-4:]], "--kind bert_wordpiece_uncased reads vocab.txt; add vocab.txt to"),
    ],
)
def test_a_faulty_command_is_refused_in_a_sentence(words: list[str], message: str) -> None:
    arguments = parsed(*words)
    with pytest.raises(RelmError) as caught:
        list_steps()[arguments.step].job(arguments)
    assert message in str(caught.value)


def test_a_faulty_option_of_an_evaluation_is_named_as_it_was_given(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    arguments = parsed("perplexity", "--model", str(tmp_path), "--file", "f", "--output", "o.json", "--windows", "rolling")
    arguments.stride = 4
    with pytest.raises(RelmError, match=r"perplexity: 1 error\n  stride: rolling windows have none; remove it"):
        list_steps()["perplexity"].job(arguments)


EXTRACT = ("extract", "--source", "s", "--train", "t", "--held-out", "h", "--job")
CAUSAL = {"revision": 1, "objectives": ["causal"], "documents": "d", "tokenizer": "t"}
DOCUMENTS = {"revision": 1, "content": [["s", "0" * 64]], "format": "jsonl"}


@pytest.mark.parametrize(
    ("words", "document", "message"),
    [
        (EXTRACT, {**DOCUMENTS, "documents": "x"}, "documents: expected a whole number from 1 on, found 'x'"),
        (EXTRACT, {**DOCUMENTS, "documents": 0}, "documents: expected a whole number from 1 on, found 0"),
        (EXTRACT, {**DOCUMENTS, "folder": "/etc"}, "folder: unknown key"),
        (EXTRACT, {**DOCUMENTS, "revision": True}, "found True, this code computes revision 1 of the documents"),
        ((*PREGENERATE, "--job"), {**CAUSAL, "objective": "masked"}, "objective: found masked"),
        ((*PREGENERATE, "--job"), {**CAUSAL, "tokenizer": float("nan")}, "not valid JSON"),
        ((*PREGENERATE, "--job"), {**CAUSAL, "tokenizer": "\ud800"}, "not valid JSON"),
        (
            (*PREGENERATE, "--job"),
            {**CAUSAL, "objectives": ["seq2seq"], "language": [1]},
            "expected a code such as en, found [1]",
        ),
        ((*PREGENERATE[:-1], "e-0123456789ab/s.bin", "--job"), CAUSAL, "is in the folder of key 0123456789ab"),
    ],
)
def test_a_faulty_document_is_refused_in_a_sentence(words: tuple[str, ...], document: dict[str, Any], message: str) -> None:
    arguments = parsed(*words, json.dumps(document))
    with pytest.raises(RelmError) as caught:
        list_steps()[arguments.step].job(arguments)
    assert message in str(caught.value)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """A command that extracts a user's folder in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    for name in "abcd":
        Path(f"texts/{name}.txt").write_text(f"The text {name}.\n")
    Path("texts.yaml").write_text(TEXTS)
    named = ("--dataset", "texts.yaml", "--source", "texts", "--workers", "1")
    return parsed("extract", *named, "--train", "t.jsonl", "--held-out", "h.jsonl")


def test_texts_that_are_edited_while_they_are_read_are_refused(texts: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extract(texts).run().startswith("extracted 4 documents")
    read = extraction.extract

    def read_and_edit(*arguments: Any) -> str:
        sentence = read(*arguments)
        Path("texts/a.txt").write_text("Edited.\n")
        return sentence

    monkeypatch.setattr(extraction, "extract", read_and_edit)
    job = extract(texts)
    with pytest.raises(RelmError, match=r"texts: its texts have the digest .* the texts changed"):
        job.run()


def test_texts_that_were_edited_since_they_were_planned_are_refused(texts: Namespace) -> None:
    document = document_of_dataset(load_dataset(texts.dataset), texts.source, "*.txt", None)
    by_job = Namespace(**{**vars(texts), "dataset": None, "job": json.dumps(document), "pattern": "*.txt"})
    assert extract(by_job).run().startswith("extracted 4 documents")
    Path("texts/a.txt").write_text("Edited.\n")
    with pytest.raises(RelmError, match="the texts changed; rerun snakemake"):
        extract(by_job).run()


def extract_documents(job: DocumentsJob, shard: str, **edits: Any) -> str:
    """Run the command of one shard, as the graph gives it but for edits of the document."""
    planned = data_jobs.extract(job, shard)
    words = planned.command(workers=1)
    words[2] = json.dumps({**json.loads(words[2]), **edits})
    planned.makes.parent.mkdir(parents=True, exist_ok=True)
    return extract(parsed(*words)).run()


def test_documents_of_a_folder_are_compared_with_the_key_in_their_path(texts: Namespace) -> None:
    dataset = load_dataset(texts.dataset).model_copy(update={"folder": "texts"})
    job = DocumentsJob(documents_identity(dataset, None, Path("work/folders")), "texts", dataset, Path("work"))
    assert extract_documents(job, "folder").startswith("extracted 4 documents")
    with pytest.raises(RelmError, match=f"is in the folder of key {job.key}: they belong to different products"):
        extract_documents(job, "folder", documents=2)


def test_documents_of_one_file_among_many_are_compared_with_the_key_in_their_path(texts: Namespace) -> None:
    files = {}
    for number in range(LISTED_FILES + 1):
        path = Path(f"{number}.jsonl")
        path.write_text(json.dumps({"text": f"Document {number}."}) + "\n")
        files[path.name] = {"sha256": sha256_of(path), "size": path.stat().st_size, "sources": [{"url": "https://x.org/x"}]}
    write_json(Path("recipes/data/many.yaml"), {**MANY, "files": files})
    dataset = load_dataset(Path("recipes/data/many.yaml"))
    job = DocumentsJob(documents_identity(dataset, None, Path("work/folders")), "many", dataset, Path("work"))
    for file in files:
        job.download(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).rename(job.download(file))
    assert extract_documents(job, "3.jsonl").startswith("extracted 1 document")
    refused = pytest.raises(RelmError, match=f"is in the folder of key {job.key}: they belong to different products")
    with refused:
        extract_documents(job, "3.jsonl", documents=1)
    with refused:
        extract_documents(job, "3.jsonl", content=[["3.jsonl", "0" * 64]])
    Path("recipes/data/many.yaml").unlink()
    with refused:
        extract_documents(job, "3.jsonl")
