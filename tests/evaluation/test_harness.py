"""The harness as an evaluation: its answer becomes a result, and its failures become messages."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizer_forms import legacy_sentencepiece

from harness_tasks import ask_harness, harness_python, own_tasks, passages, small_model, small_tokenizer, wikitext, write_task
from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.harness import (
    batch_size,
    build_result,
    describe_protocol,
    evaluate_harness,
    require_end_of_text,
    select_figures,
    tokenizer_folder,
)
from relm.evaluation.harness_process import RecordedData, describe_documents, model_arguments
from relm.evaluation.model_folder import weights_sha256
from relm.evaluation.text_perplexity import split_pages

FOUND: dict[str, Any] = {
    "version": "0.4.13",
    "results": {
        "mmlu_law": {"name": "mmlu_law", "alias": "law", "sample_len": 10, "acc,none": 0.5, "acc_stderr,none": "N/A"},
        "mmlu": {"name": "mmlu", "alias": "mmlu", "sample_len": 10, "acc,none": 0.25, "acc_stderr,none": 0.125},
    },
    "versions": {"mmlu": 2, "mmlu_law": 1.0},
    "n_samples": {"mmlu_law": {"original": 100, "effective": 10}},
    "configs": {"mmlu_law": {"dataset_path": "hails/mmlu", "num_fewshot": 5}},
    "context": 64,
    "truncated": 3,
    "data": {"hf://datasets/hails/mmlu": "revision abc"},
    "task_files": {},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness")
    return small_model(folder / "model", small_tokenizer(folder))


def test_figures_have_the_harness_s_names_and_those_of_members_their_task_in_front() -> None:
    figures, left_out = select_figures(FOUND["results"], "mmlu")
    assert figures == {"acc": 0.25, "acc_stderr": 0.125, "mmlu_law_acc": 0.5}
    assert next(iter(figures)) == "acc"
    assert left_out == {}


def test_a_filter_stands_behind_the_metric_and_before_its_error() -> None:
    gsm = {"exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": 0.1, "chrf++,none": 3}
    figures, _ = select_figures({"gsm8k": gsm}, "gsm8k")
    assert figures == {"exact_match_strict_match": 0.5, "exact_match_strict_match_stderr": 0.1, "chrfpp": 3}


def test_a_figure_that_is_no_number_is_left_out_by_name() -> None:
    results = {"a": {"acc,none": 0.5, "perplexity,none": float("inf"), "perplexity_stderr,none": float("nan")}}
    assert select_figures(results, "a") == ({"acc": 0.5}, {"perplexity": "inf", "perplexity_stderr": "nan"})
    with pytest.raises(RelmError, match=r'lm_eval\'s a: no figure is a finite number: \{"acc": "nan"\}'):
        build_result({**FOUND, "results": {"a": {"acc,none": float("nan")}}}, "a", "lm_eval_a", None, "0", None, 4)


def test_the_protocol_records_version_data_and_each_task() -> None:
    result = build_result(FOUND, "mmlu", "lm_eval_mmlu", 10, "1" * 64, "2" * 64, 4)
    assert (result.task, result.model_sha256) == ("lm_eval_mmlu", "1" * 64)
    assert {key: result.protocol[key] for key in ("harness", "examples", "limit", "context", "truncated", "batch_size")} == {
        "harness": "lm_eval 0.4.13",
        "examples": 10,
        "limit": 10,
        "context": 64,
        "truncated": 3,
        "batch_size": 4,
    }
    assert result.protocol["data"] == {"hf://datasets/hails/mmlu": "revision abc"}
    assert result.protocol["tasks"] == {
        "mmlu_law": {"version": 1.0, "examples": 10, "of": 100, "dataset_path": "hails/mmlu", "num_fewshot": 5}
    }
    assert describe_protocol(FOUND, "mmlu", 10, 10) == (
        "Task mmlu (1 tasks), version 2 of EleutherAI's lm-evaluation-harness 0.4.13, by the harness itself: 10 examples, "
        "5 solved examples in front of each. Only the first 10 examples of each task."
    )


def test_a_batch_is_bounded_by_its_tokens_and_by_its_logits() -> None:
    assert batch_size({"n_positions": 64, "vocab_size": 1000}, 8192) == 128
    assert batch_size({"max_position_embeddings": 1024, "vocab_size": 50257}, 8192) == 5
    assert batch_size({}, 100) == 1


def test_a_cpu_s_usual_batch_holds_four_of_the_longest_sequences_where_memory_allows() -> None:
    usual = Execution().batch_tokens
    assert batch_size({"n_positions": 1024, "vocab_size": 50257}, usual) == 4
    assert batch_size({"max_position_embeddings": 2048, "vocab_size": 50257}, usual) == 2
    assert batch_size({"max_position_embeddings": 8192, "vocab_size": 128256}, usual) == 1
    assert batch_size({"n_positions": 1024, "vocab_size": 50257}, 512) == 1  # fewer tokens are requested


@pytest.mark.full
def test_the_batch_size_is_recorded_and_moves_figures_by_rounding_alone(model: Path, tmp_path: Path) -> None:
    python = harness_python()
    tasks = own_tasks(tmp_path / "tasks", passages()[:8], [], python)
    found = {}
    for tokens in (48, 1024):
        output = tmp_path / f"{tokens}.json"
        evaluate_harness(model, "own_lambada", output, "a", python, tasks, None, Execution(threads=1, batch_tokens=tokens))
        result = json.loads(output.read_text())
        found[result["protocol"]["batch_size"]] = result["figures"]["perplexity"]
    assert list(found) == [1, 21]
    assert found[21] == pytest.approx(found[1], rel=1e-4)


def test_without_the_environment_the_message_names_the_command_that_makes_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"nothing/python: the harness's environment does not exist; `make harness` makes it"):
        evaluate_harness(model, "hellaswag", tmp_path / "a.json", "a", tmp_path / "nothing" / "python")


def test_the_message_has_the_last_lines_of_an_interpreter_that_fails(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RelmError, match=r"hellaswag: the harness ended with status 1; its last words: .*No module named 'lm_eval'"
    ):
        evaluate_harness(model, "hellaswag", tmp_path / "a.json", "a", Path(sys.executable), execution=Execution(threads=1))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_writes_no_text_is_refused(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    (folder / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    with pytest.raises(
        RelmError, match=r"bert: is a BertForMaskedLM, expected a model that writes text, as the harness's tasks need"
    ):
        evaluate_harness(folder, "hellaswag", tmp_path / "a.json", "a")


ATTENTION = [("_attn_implementation", "flash_attention_2"), ("attn_implementation", "somebody/kernels"), ("x", "y")]


def name_attention(model: Path, folder: Path, key: str, name: str) -> Path:
    """Copy a model, and have its configuration name an implementation of attention."""
    shutil.copytree(model, folder)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: name}))
    return folder


@pytest.mark.parametrize(("key", "name"), ATTENTION)
def test_attention_is_the_same_whatever_the_configuration_names(model: Path, tmp_path: Path, key: str, name: str) -> None:
    folder = str(name_attention(model, tmp_path / "named", key, name))
    arguments = model_arguments({"model": folder, "tokenizer": folder, "precision": "float32"})
    assert arguments["attn_implementation"] == "sdpa"


@pytest.mark.full
def test_the_harness_evaluates_with_that_attention(model: Path, tmp_path: Path) -> None:
    python = harness_python()
    tasks = own_tasks(tmp_path / "tasks", passages(), split_pages(wikitext()), python)
    named = name_attention(model, tmp_path / "named", *ATTENTION[0])
    answers = [ask_harness(folder, ["own_lambada"], tasks, python)["results"] for folder in (model, named)]
    assert answers[0]["own_lambada"]["acc,none"] == answers[1]["own_lambada"]["acc,none"]


def test_a_tokenizer_without_an_end_of_text_is_refused(model: Path, tmp_path: Path) -> None:
    settings = json.loads((model / "tokenizer_config.json").read_text())
    shutil.copytree(model, tmp_path / "model")
    del settings["bos_token"], settings["eos_token"]
    (tmp_path / "model" / "model.safetensors.json").unlink()  # as in folders of other origin
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(RelmError, match=r"model: the tokenizer has no end of text, which the harness puts before every text"):
        evaluate_harness(tmp_path / "model", "hellaswag", tmp_path / "a.json", "a")


@pytest.mark.parametrize("own", [True, False])
def test_a_tokenizer_with_ids_that_the_model_lacks_is_refused(own: bool, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors.json").unlink()  # as in folders of other origin
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    last = {**tokenizer["added_tokens"][0], "id": size, "content": "<|more|>"}
    larger = tmp_path / "model" / "tokenizer.json" if own else tmp_path / "tokenizer.json"
    larger.write_text(json.dumps({**tokenizer, "added_tokens": [*tokenizer["added_tokens"], last]}))
    with pytest.raises(
        RelmError, match=rf"model: the model has {size:,} tokens, the tokenizer {size + 1:,}; give the tokenizer"
    ):
        evaluate_harness(tmp_path / "model", "hellaswag", tmp_path / "a.json", "a", tokenizer=None if own else larger)


@pytest.mark.parametrize(
    "named", [{"fast_tokenizer_files": ["tokenizer.4.0.json"]}, {"vocab": "/a/vocab.json", "merges": "/a/merges.txt"}]
)
def test_a_tokenizer_of_files_that_its_settings_name_is_refused(model: Path, tmp_path: Path, named: dict[str, Any]) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors.json").unlink()  # as in folders of other origin
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | named))
    with pytest.raises(RelmError, match=f"tokenizer_config.json: names files by its key {next(iter(named))}"):
        evaluate_harness(tmp_path / "model", "hellaswag", tmp_path / "a.json", "a")


def test_an_end_of_text_may_be_named_in_the_older_file(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    named = {key: {"content": settings.pop(key)} for key in ("bos_token", "eos_token")}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "model" / "special_tokens_map.json").write_text(json.dumps(named))
    require_end_of_text(tmp_path / "model", tmp_path / "model")


def test_a_tokenizer_of_its_own_keeps_the_special_tokens_that_the_files_beside_it_name(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    legacy_sentencepiece(folder / "tokenizer.json")
    (folder / "special_tokens_map.json").write_text(
        '{"bos_token": "<s>", "eos_token": "</s>", "pad_token": {"content": "<unk>"}}'
    )
    with tokenizer_folder(model, folder / "tokenizer.json", {}) as made:
        settings = json.loads((made / "tokenizer_config.json").read_text())
    assert {key: settings[key] for key in ("bos_token", "eos_token", "pad_token")} == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<unk>",
    }


def test_a_group_of_one_s_own_tasks_is_evaluated_and_recorded(model: Path, tmp_path: Path) -> None:
    python = harness_python()
    tasks = own_tasks(tmp_path / "tasks", passages(), split_pages(wikitext()), python)
    (tasks / "both.yaml").write_text("group: own-both\ntask: [own_lambada, own_wikitext]\n")
    (tasks / "own_words.py").write_text("def text(doc):\n    return doc['text'].rpartition(' ')[0]\n")
    with open(tasks / "own_lambada.yaml", "a") as file:
        file.write("doc_to_text: !function own_words.text\n")
    bare = tmp_path / "bare"  # weights whose tokenizer lies elsewhere
    bare.mkdir()
    for name in ("model.safetensors", "config.json"):
        (bare / name).write_bytes((model / name).read_bytes())
    output = tmp_path / "eval" / "lm_eval_own-both.json"
    sentence = evaluate_harness(
        bare, "own-both", output, output.stem, python, tasks, 3, Execution(threads=1), model / "tokenizer.json"
    )
    assert "lm_eval's own-both: own_lambada_perplexity " in sentence
    assert "; 6 examples, " in sentence
    result = json.loads(output.read_text())
    assert result["task"] == "lm_eval_own-both"
    assert result["model_sha256"] == weights_sha256(model)
    assert sorted(result["figures"]) == [
        *("own_lambada_acc", "own_lambada_acc_stderr", "own_lambada_perplexity", "own_lambada_perplexity_stderr"),
        *("own_wikitext_bits_per_byte", "own_wikitext_byte_perplexity", "own_wikitext_word_perplexity"),
    ]
    protocol = result["protocol"]
    files = ["both.yaml", "own_lambada.yaml", "own_wikitext.yaml", "own_words.py"]
    assert protocol["task_files"] == {name: sha256_of(tasks / name) for name in files}
    assert protocol["data"] == {name: sha256_of(tasks / name) for name in ("own_lambada.jsonl", "own_wikitext.jsonl")}
    assert protocol["tokenizer_sha256"] == sha256_of(model / "tokenizer.json")
    assert (protocol["limit"], protocol["context"], protocol["batch_size"]) == (3, 48, 21)
    assert (protocol["begin"], protocol["begin_tokens"]) == ("tokenizer", [])
    assert protocol["prefix_token"] == {"id": 0, "token": "<|endoftext|>"}
    assert protocol["tasks"]["own_lambada"]["of"] == len(passages())
    assert protocol["tasks"]["own_lambada"]["output_type"] == "loglikelihood"


@pytest.mark.full
def test_the_message_about_an_unknown_task_has_the_nearest_names_and_the_unreadable_files(model: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "mine.yaml").write_text("task: mine\n  output_type: loglikelihood\n")
    with pytest.raises(RelmError) as raised:
        evaluate_harness(model, "helaswag", tmp_path / "a.json", "a", harness_python(), tasks)
    assert "there is no task 'helaswag' among the " in str(raised.value)
    assert "did you mean hellaswag" in str(raised.value)
    assert "; mine.yaml cannot be read: ScannerError" in str(raised.value)


def test_the_message_about_data_that_cannot_be_fetched_advises_on_the_network(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    settings = "output_type: loglikelihood\ntest_split: test\ndoc_to_text: a\ndoc_to_target: b\n"
    (tasks / "far.yaml").write_text(f"task: far\ndataset_path: nobody/nothing\n{settings}")
    with pytest.raises(RelmError) as raised:
        evaluate_harness(model, "far", tmp_path / "a.json", "a", harness_python(), tasks)
    assert "the harness: task far cannot be loaded: " in str(raised.value)
    assert "nobody/nothing" in str(raised.value)
    assert "its data comes from the Hugging Face hub: evaluate where there is a network" in str(raised.value)


def refused(model: Path, folder: Path, content: bytes, process_docs: str = "") -> str:
    """Return the message about a task with this data."""
    python = harness_python()
    write_task(folder, "own_lambada", "lambada/lambada_openai.yaml", [], python)
    (folder / "own_lambada.jsonl").write_bytes(content)
    if process_docs:
        (folder / "own.py").write_text(process_docs)
        with open(folder / "own_lambada.yaml", "a") as file:
            file.write("process_docs: !function own.chosen\n")
    with pytest.raises(RelmError) as raised:
        evaluate_harness(model, "own_lambada", folder / "a.json", "a", python, folder, None, Execution(threads=1))
    return str(raised.value).replace(str(folder), "FOLDER")


def test_an_empty_file_of_data_is_named(model: Path, tmp_path: Path) -> None:
    assert refused(model, tmp_path, b"") == (
        "the harness: task own_lambada cannot be loaded: FOLDER/own_lambada.jsonl is empty; write the task's documents into it"
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("content", "process_docs", "message"),
    [
        (b'{"text": "a b"}\n{"tex', "", "own_lambada.jsonl, line 2: not JSON (Unterminated string"),
        (
            b'{"txt": "a b"}\n',
            "",
            "'text' is undefined; its data: FOLDER/own_lambada.jsonl (documents: 1; keys with a value in",
        ),
        (
            b'{"text": "a b"}\n{"txt": "a b"}\n',
            "",
            "a prompt cannot be written: UndefinedError: 'None' has no attribute 'split'; ",
        ),
        (
            b'{"text": "a b"}\n',
            "def chosen(documents):\n    return documents.filter(lambda document: False)\n",
            "no document is left after the task's own filter (process_docs); its data: FOLDER/own_lambada.jsonl (documents: 1",
        ),
    ],
)
def test_data_that_no_task_can_use_are_named(
    model: Path, tmp_path: Path, content: bytes, process_docs: str, message: str
) -> None:
    assert message in refused(model, tmp_path, content, process_docs)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b" \n", " is empty; "),
        (b"[]", " is empty; "),
        (b'{"a": 1}\n\n{"a"\n', ", line 3: not JSON (Expecting ':' delimiter"),
        (b"\xff\xfe\n", ", byte 0: not UTF-8; "),
        (b'{"a": 1}\n{"a": 2}', None),
        (b'[\n{"a": 1},\n{"a": 2}]\n', None),
        (b'\xef\xbb\xbf{"a": 1}\r\n{"a": "\xe2\x80\xa8"}\r\n', None),
    ],
)
def test_a_file_of_documents_is_read_line_by_line_or_as_one_value(tmp_path: Path, content: bytes, fault: str | None) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(content)
    found = RecordedData(files=[path]).fault()
    assert found is None if fault is None else str(found).startswith(f"{path}{fault}")


def test_documents_are_described_by_the_keys_that_all_of_them_have(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"a": 1, "b": 2, "c": null}\n{"b": 3, "c": 4}\n')
    assert describe_documents(path) == f"{path} (documents: 2; keys with a value in each: b)"
    path.write_text('{"a": 1}\n[1]\n')
    assert describe_documents(path) == f"{path} (documents: 2; keys with a value in each: none)"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a killed process takes no other along")
def test_the_harness_ends_with_its_parent_process(model: Path, tmp_path: Path) -> None:
    python = harness_python()
    tasks = own_tasks(tmp_path / "tasks", passages(), split_pages(wikitext()), python)
    (tasks / "waiting.py").write_text("import time\n\nprint('waiting', flush=True)\ntime.sleep(60)\n")
    with open(tasks / "own_lambada.yaml", "a") as file:
        file.write("doc_to_text: !function waiting.text\n")
    program = (
        "from pathlib import Path\nfrom relm.evaluation.harness import evaluate_harness\n"
        f"evaluate_harness(Path({str(model)!r}), 'own_lambada', Path({str(tmp_path / 'a.json')!r}), 'a', "
        f"Path({str(python)!r}), Path({str(tasks)!r}))\n"
    )
    asking = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert asking.stderr is not None
    assert any("waiting" in line for line in asking.stderr)
    children = [int(pid) for pid in Path(f"/proc/{asking.pid}/task/{asking.pid}/children").read_text().split()]
    assert len(children) == 1
    os.kill(asking.pid, signal.SIGTERM)
    asking.wait()
    for _ in range(100):
        if not _alive(children[0]):
            break
        time.sleep(0.1)
    assert not _alive(children[0])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
