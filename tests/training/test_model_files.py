"""Every file of a trained model matches its sidecar, or the model is neither read, nor published, nor trained on."""

import json
import shutil
from pathlib import Path

import pytest

from relm.artifact import SEAL, read_json, sha256_of, sidecar_of, write_json
from relm.errors import RelmError
from relm.evaluation.training_speed import evaluate_training
from relm.recipes.evaluation.evaluation_job import PhaseLength
from relm.training.model_files import NOTICED, checked_model, checked_weights
from tiny_runs import TinyRun

SHORT = {"pretrain": {"main": {"steps": 6}}, "run": {"checkpoint_interval": 2}}
NAMES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture
def model(uninterrupted: TinyRun, tmp_path: Path) -> Path:
    """A copy of a finished model's folder."""
    return Path(shutil.copytree(uninterrupted.model_folder, tmp_path / "model"))


def change(path: Path) -> None:
    """Change the configuration, as a user with an editor would."""
    path.write_text(path.read_text().replace('"layer_norm_epsilon": 1e-05', '"layer_norm_epsilon": 10'))


def made_by_an_earlier_version(folder: Path) -> Path:
    """Remove the keys that earlier versions did not write, and return the sidecar."""
    sidecar = sidecar_of(folder / "model.safetensors")
    content = read_json(sidecar)
    del content["files"], content[SEAL]
    write_json(sidecar, content)
    return sidecar


def test_the_sidecar_of_a_trained_model_names_every_file_of_its_folder(uninterrupted: TinyRun) -> None:
    folder = uninterrupted.model_folder
    files = read_json(folder / "model.safetensors.json")["files"]
    assert list(files) == NAMES
    assert {*files, "model.safetensors", "model.safetensors.json"} == {path.name for path in folder.iterdir()}
    assert all(
        facts == {"sha256": sha256_of(folder / name), "size": (folder / name).stat().st_size} for name, facts in files.items()
    )


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_generation_config_is_restored_unless_config_json_is_another(model: Path, damaged: bool) -> None:
    lost, config = model / "generation_config.json", model / "config.json"
    before = lost.read_bytes()
    lost.unlink()
    if damaged:
        config.write_text(config.read_text().replace('"eos_token_id": 256', '"eos_token_id": 255'))
        with pytest.raises(RelmError, match="model/"):
            checked_model(model / "model.safetensors")
        assert not lost.exists()
    else:
        checked_model(model / "model.safetensors")
        assert lost.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_of_a_model_is_refused_by_all_readers_of_its_weights(model: Path, name: str, tmp_path: Path) -> None:
    sha256 = sha256_of(model / "model.safetensors")
    assert checked_weights(model) == sha256
    (model / name).write_text((model / name).read_text() + "\n")
    with pytest.raises(RelmError, match=f"model/{name}: has .* put back the {name} that belongs to model.safetensors, or"):
        checked_weights(model)
    log, phases = tmp_path / "train.jsonl", {"main": PhaseLength(steps=1, global_batch_size=1)}
    log.write_text('{"step": 1, "seconds": 2.0}\n')
    with pytest.raises(RelmError, match=f"model/{name}: has "):
        evaluate_training(model, phases, [log], {}, output=tmp_path / "training.json")


def test_a_model_with_a_changed_configuration_is_not_finished_and_is_written_again(tiny_run: TinyRun) -> None:
    tiny_run.changes = SHORT
    tiny_run.train()
    config = tiny_run.model_folder / "config.json"
    expected = config.read_bytes()
    change(config)
    assert config.read_bytes() != expected
    assert "already trained" not in tiny_run.train()
    assert config.read_bytes() == expected
    assert "already trained" in tiny_run.train()


def test_a_model_of_an_earlier_version_is_written_again_from_its_last_checkpoint(tiny_run: TinyRun) -> None:
    tiny_run.changes = SHORT
    tiny_run.train()
    weights, lines = tiny_run.model_folder / "model.safetensors", tiny_run.lines()
    expected, sidecar = weights.read_bytes(), made_by_an_earlier_version(tiny_run.model_folder)
    assert "already trained" not in tiny_run.train()
    assert weights.read_bytes() == expected
    assert tiny_run.lines() == lines, "something was trained again"
    assert list(read_json(sidecar)["files"]) == NAMES


def test_the_error_for_a_model_of_an_earlier_version_names_the_command_that_writes_it_again(model: Path) -> None:
    sidecar = made_by_an_earlier_version(model)
    for read in (lambda: checked_weights(model), lambda: checked_model(model / "model.safetensors")):
        with pytest.raises(
            RelmError, match=r"does not name config\.json and tokenizer.*Delete it, and `snakemake .*safetensors\.json` writes"
        ):
            read()
    content = read_json(sidecar)
    del content["fingerprint"]  # as the sidecar of a download: the configuration beside it has its own
    write_json(sidecar, content)
    assert checked_weights(model) == content["sha256"]


def test_a_configuration_with_its_own_sidecar_is_checked_too(tmp_path: Path) -> None:
    """Download and conversion write a model in this way."""
    from relm.artifact import write_sidecar

    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_text("{}")
        write_sidecar(tmp_path / name)
    assert checked_weights(tmp_path) == sha256_of(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RelmError, match=r"config\.json: sha256 is "):
        checked_weights(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("adapter_config.json", "adapter_model.safetensors", "added_tokens.json", "special_tokens_map.json"),
        *("chat_template.jinja", "chat_template.json", "additional_chat_templates", "tokenizer.model", "vocab.txt"),
        *("model.safetensors.index.json", "model-00001-of-00002.safetensors", "pytorch_model.bin", "modeling_own.py"),
    ],
)
def test_an_unlisted_file_that_loaders_would_read_is_refused(model: Path, name: str) -> None:
    (model / name).write_text("{}")
    with pytest.raises(RelmError, match=f"model: contains {name}, which .*model.safetensors.json does not name. Remove it"):
        checked_weights(model)


def test_unlisted_files_that_no_loader_reads_are_accepted(model: Path) -> None:
    for name in ("README.md", "notes.txt", "train.jsonl", "verify.json", "model.safetensors.record.json", ".lock"):
        (model / name).write_text("{}")
    (model / "eval").mkdir()
    assert checked_weights(model) == sha256_of(model / "model.safetensors")


def test_the_file_names_of_transformers_are_among_those_that_loaders_read() -> None:
    from fnmatch import fnmatch

    from transformers import tokenization_utils_base, utils
    from transformers.utils import hub

    names = {value for key, value in vars(utils).items() if key.endswith("_NAME") and str(value).endswith((".json", ".bin"))}
    names |= {tokenization_utils_base.SPECIAL_TOKENS_MAP_FILE, tokenization_utils_base.ADDED_TOKENS_FILE}
    names |= {hub.CHAT_TEMPLATE_FILE, hub.LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE, hub.CHAT_TEMPLATE_DIR}
    assert len(names) > 12
    unnoticed = {name for name in names if not any(fnmatch(name, pattern) for pattern in NOTICED)}
    assert unnoticed <= {"modelcard.json"}


def test_a_second_phase_does_not_begin_with_a_changed_model(uninterrupted: TinyRun, model: Path, tiny_run: TinyRun) -> None:
    change(model / "config.json")
    tiny_run.changes, tiny_run.init_from = SHORT, model
    with pytest.raises(RelmError, match=r"model/config\.json: has "):
        tiny_run.train()
    assert json.loads((model / "config.json").read_text())["layer_norm_epsilon"] == 10
