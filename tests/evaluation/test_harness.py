"""The harness as an evaluation: its results become a result, and its failures become messages."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizer_forms import legacy_sentencepiece

from harness_tasks import harness_python, own_tasks, passages, small_model, small_tokenizer, wikitext
from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.harness.harness_run import list_data_files, run_harness
from relm.evaluation.harness.tasks import (
    batch_size,
    build_result,
    describe_protocol,
    evaluate_harness,
    link_model,
    select_figures,
    tokenizer_folder,
)
from relm.evaluation.model_folder import weights_sha256
from relm.evaluation.text_perplexity import split_pages

ONE_THREAD = Execution(threads=1)
FOUND: dict[str, Any] = {
    "lm_eval_version": "0.4.13",
    "results": {
        "mmlu_law": {"name": "mmlu_law", "alias": "law", "sample_len": 10, "acc,none": 0.5, "acc_stderr,none": "N/A"},
        "mmlu": {"name": "mmlu", "alias": "mmlu", "sample_len": 10, "acc,none": 0.25, "acc_stderr,none": 0.125},
    },
    "versions": {"mmlu": 2, "mmlu_law": 1.0},
    "n-samples": {"mmlu_law": {"original": 100, "effective": 10}},
    "configs": {"mmlu_law": {"dataset_path": "hails/mmlu", "num_fewshot": 5, "doc_to_text": "{{a}}"}},
    "max_length": 64,
    "truncated": 3,
    "data": {"hf://datasets/hails/mmlu": "revision abc"},
    "task_files": {},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness")
    return small_model(folder / "model", small_tokenizer(folder))


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A folder of other origin, whose files may be changed."""
    shutil.copytree(model, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors.json").unlink()
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("results", "task", "figures", "left_out"),
    [
        (FOUND["results"], "mmlu", {"acc": 0.25, "acc_stderr": 0.125, "mmlu_law_acc": 0.5}, {}),
        (
            {"gsm8k": {"exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": 0.1, "chrf++,none": 3}},
            "gsm8k",
            {"exact_match_strict_match": 0.5, "exact_match_strict_match_stderr": 0.1, "chrfpp": 3},
            {},
        ),
        (
            {"a": {"acc,none": "0.5", "perplexity,none": float("inf"), "perplexity_stderr,none": float("nan")}},
            "a",
            {"acc": 0.5},
            {"perplexity": "inf", "perplexity_stderr": "nan"},
        ),
    ],
    ids=["group", "filter", "not finite"],
)
def test_figures_have_the_harness_s_names(
    results: dict[str, Any], task: str, figures: dict[str, float], left_out: dict[str, str]
) -> None:
    assert select_figures(results, task) == (figures, left_out)
    assert next(iter(select_figures(results, task)[0])) == next(iter(figures))


def test_a_result_without_a_figure_is_refused() -> None:
    with pytest.raises(RelmError, match=r'lm_eval\'s a: no figure is a finite number: \{"acc": "nan"\}'):
        build_result({**FOUND, "results": {"a": {"acc,none": float("nan")}}}, "a", "0", {"limit": None})


def test_the_protocol_records_version_data_and_each_task() -> None:
    result = build_result(FOUND, "mmlu", "1" * 64, {"limit": 10, "batch_size": 4})
    assert (result.model_sha256, result.scored) == ("1" * 64, (10, "examples"))
    assert result.protocol == {
        "in_words": describe_protocol(FOUND, "mmlu", 10, 10),
        "harness": "lm_eval 0.4.13",
        "harness_task": "mmlu",
        "task_files": {},
        "data": {"hf://datasets/hails/mmlu": "revision abc"},
        "truncated": 3,
        "context": 64,
        "limit": 10,
        "batch_size": 4,
        "examples": 10,
        "tasks": {"mmlu_law": {"version": 1.0, "examples": 10, "of": 100, "dataset_path": "hails/mmlu", "num_fewshot": 5}},
    }
    assert describe_protocol(FOUND, "mmlu", 10, 10) == (
        "Task mmlu (1 tasks), version 2 of EleutherAI's lm-evaluation-harness 0.4.13, by the harness itself: 10 examples, "
        "5 solved examples in front of each. Only the first 10 examples of each task."
    )


@pytest.mark.parametrize(
    ("config", "tokens", "sequences"),
    [
        ({"n_positions": 64, "vocab_size": 1000}, 8192, 128),
        ({"max_position_embeddings": 1024, "vocab_size": 50257}, 8192, 5),
        ({}, 100, 1),
        # A CPU's usual batch holds four of the longest sequences, where memory allows.
        ({"n_positions": 1024, "vocab_size": 50257}, Execution().batch_tokens, 4),
        ({"max_position_embeddings": 2048, "vocab_size": 50257}, Execution().batch_tokens, 2),
        ({"max_position_embeddings": 8192, "vocab_size": 128256}, Execution().batch_tokens, 1),
        ({"n_positions": 1024, "vocab_size": 50257}, 512, 1),
    ],
)
def test_a_batch_is_bounded_by_its_tokens_and_by_its_logits(config: dict[str, int], tokens: int, sequences: int) -> None:
    assert batch_size(config, tokens) == sequences


def change(path: Path, **keys: Any) -> None:
    """Change keys of a JSON file; None deletes one."""
    content = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.mark.parametrize(
    ("file", "keys", "message"),
    [
        (
            "config.json",
            {"architectures": ["BertForMaskedLM"]},
            "copy: is a BertForMaskedLM, expected a model that writes text, as the harness's tasks require",
        ),
        ("config.json", {"vocab_size": 100}, "copy: the model has 100 tokens, the tokenizer [0-9]+; give the tokenizer"),
        (
            "tokenizer_config.json",
            {"bos_token": None, "eos_token": None},
            "copy: the tokenizer has no end of text; name its eos_token in tokenizer_config.json",
        ),
        (
            "tokenizer_config.json",
            {"fast_tokenizer_files": ["tokenizer.4.0.json"]},
            "tokenizer_config.json: key fast_tokenizer_files names other files",
        ),
        ("tokenizer_config.json", {"vocab": "/a/vocab.json"}, "tokenizer_config.json: key vocab names other files"),
    ],
)
def test_a_folder_that_the_harness_would_misread_is_refused(
    file: str, keys: dict[str, Any], message: str, copy: Path, tmp_path: Path
) -> None:
    change(copy / file, **keys)
    with pytest.raises(RelmError, match=message):
        evaluate_harness(copy, "hellaswag", Path(sys.executable), output=tmp_path / "a.json", execution=ONE_THREAD)


def test_attention_is_the_one_that_transformers_prefers_whatever_the_configuration_names(copy: Path, tmp_path: Path) -> None:
    config = {"_attn_implementation": "flash_attention_2", "text_config": {"attn_implementation": "somebody/kernels", "a": 1}}
    made = link_model(copy, config, tmp_path / "made")
    assert json.loads((made / "config.json").read_text()) == {"text_config": {"a": 1}}
    assert (made / "model.safetensors").samefile(copy / "model.safetensors")
    assert json.loads((copy / "config.json").read_text())["model_type"] == "gpt2"


def test_a_given_tokenizer_keeps_the_special_tokens_that_the_files_next_to_it_name(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    legacy_sentencepiece(folder / "tokenizer.json")
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(named | {"pad_token": {"content": "<unk>"}}))
    made = tokenizer_folder(model, folder / "tokenizer.json", {}, tmp_path / "made")
    assert json.loads((made / "tokenizer_config.json").read_text()).items() >= named.items()


def test_a_task_file_that_cannot_be_read_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\n  output_type: loglikelihood\n")
    with pytest.raises(RelmError, match=r"mine.yaml: cannot be read as a task of the harness: mapping values are not allowed"):
        evaluate_harness(model, "mine", Path(sys.executable), tmp_path, output=tmp_path / "a.json", execution=ONE_THREAD)


def said(folder: Path, words: str, results: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the results of a harness that says some words and, if there are results, writes them."""
    (folder / "words").write_text(words)
    (folder / "results").write_text(json.dumps(results))
    wrote = f'cp {folder}/results "$(dirname "$7")/results_1.json"' if results else "exit 3"
    (folder / "python").write_text(f"#!/bin/sh\ncat {folder}/words >&2\n{wrote}\n")
    (folder / "python").chmod(0o755)
    (folder / "made").mkdir()
    return run_harness({"tasks": ["a"], "model_args": {}}, folder / "made", 1, None, folder / "python")


def test_cut_examples_are_counted_and_revisions_of_data_are_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cut = "WARNING Combined length of context (81) and continuation (6) exceeds model's maximum length (48).\n"
    cached = "Found cached dataset {} (/root/.cache/huggingface/datasets/{}/default/0.0.0/{})\n"
    words = cut * 3 + cached.format("hellaswag", "Rowan___hellaswag", "ab" * 20) + cached.format("json", "json", "c" * 64)
    found = said(tmp_path, words + cached.format("old", "old", "12" * 20), FOUND)
    assert found["truncated"] == 3
    assert found["data"] == {
        "hf://datasets/Rowan/hellaswag": f"revision {'ab' * 20}",
        "hf://datasets/old": f"revision {'12' * 20}",
    }
    assert capfd.readouterr().err.count("Combined length") == 1


def test_data_are_the_local_files_that_a_task_names(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b1.jsonl", "b2.jsonl"):
        (tmp_path / name).touch()
    named = {"data_files": {"test": ["a.jsonl", "https://a/c.jsonl"], "train": str(tmp_path / "b*.jsonl")}, "data_dir": "."}
    assert sorted(path.name for path in list_data_files({"dataset_kwargs": named}, tmp_path)) == [
        *("a.jsonl", "b1.jsonl", "b2.jsonl")
    ]
    assert list(list_data_files({}, tmp_path)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "a: the harness ended with status 3; its last words: none"),
        (
            'Traceback (most recent call last):\n  File "x", line 1\nA: b\n\nDuring handling of\n  File "y"\nC: d\n',
            "its last words: A: b | C: d",
        ),
        ("ConnectionError: Couldn't reach 'a' on the Hub (x)\n", "evaluate where there is a network (HF_HUB_OFFLINE unset)"),
    ],
)
def test_a_message_has_the_last_errors_of_a_harness_that_fails(words: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError) as raised:
        said(tmp_path, words)
    assert message in str(raised.value)


def test_without_the_environment_the_message_names_the_command_that_makes_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"nothing/python: the harness's environment does not exist; `make harness` makes it"):
        evaluate_harness(model, "hellaswag", tmp_path / "nothing" / "python", output=tmp_path / "a.json")


def test_a_group_of_user_tasks_is_evaluated_and_recorded(model: Path, tmp_path: Path) -> None:
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
        bare, "own-both", python, tasks, 3, ONE_THREAD, model / "tokenizer.json", output=output, task=output.stem
    )
    assert "lm_eval's own-both: own_lambada_perplexity " in sentence
    assert "; 6 examples; " in sentence
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


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="elsewhere a killed process takes no other along")
def test_the_harness_ends_with_its_parent_process(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho waiting $$ >&2\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    program = (
        "from pathlib import Path\nfrom relm.evaluation.harness.harness_run import run_harness\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "run_harness({'tasks': ['a'], 'model_args': {}}, folder, 1, None, folder / 'python')\n"
    )
    asking = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert asking.stderr is not None
    harness = Path("/proc") / next(line.split()[1] for line in asking.stderr if line.startswith("waiting"))
    assert harness.exists()
    asking.kill()
    asking.wait()
    for _ in range(100):
        if not harness.exists() or "Z" in (harness / "stat").read_text().split():
            return
        time.sleep(0.1)
    pytest.fail("the harness goes on")
