"""Evaluation by any task of EleutherAI's language-model evaluation harness (lm_eval, MIT), by the harness's command.

`make harness` installs a pinned version in a separate environment. The harness reads the model's folder as its users do,
through `transformers`, with the ids of tokenizer.json (`harness_tokenizer`).
"""

import json
import logging
import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relm.artifact import sha256_of, write_json
from relm.errors import RelmError
from relm.evaluation.beginning import prefix_token
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.harness.harness_run import require_harness, run_harness
from relm.evaluation.harness.harness_tokenizer import choose_tokenizer
from relm.evaluation.model_checks import require_vocabulary
from relm.evaluation.model_folder import configuration, readable, weights_sha256
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.special_tokens import TOKENIZER_SETTINGS, named_tokens, read_settings
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.limits import usable_cores
from relm.recipes.devices import DEVICES, HOST
from relm.training.export import tokenizer_config

log = logging.getLogger(__name__)

# Suffixes of architectures that write text, as the harness's tasks require.
GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# Positions that the harness assumes without a configured number.
POSITIONS = 2048
# Logits of a batch, which the harness holds twice: 1 GiB in float32.
LARGEST_LOGITS = 2**28
# Sequences in a batch even if all had the model's full length: examples are far shorter, and a CPU gains from batches.
LEAST_BATCH = 4
# Keys of a task's configuration to record; the rest are prompts and functions.
ESSENTIALS = ("dataset_path", "dataset_name", "test_split", "validation_split", "num_fewshot", "output_type")
# Keys of a model's configuration that may name a program on the hub or a missing package.
ATTENTION = ("_attn_implementation", "attn_implementation")


@evaluation
def evaluate_harness(
    model_folder: Path,
    harness_task: str,
    harness_python: Path | None = None,
    task_folder: Path | None = None,
    limit: int | None = None,
    execution: Execution = ON_THE_HOST,
    tokenizer: Path | None = None,
) -> Scored:
    """Let the harness evaluate a folder on one of its tasks or groups, or on those of the user's task folder.

    Figures have the harness's names, followed by a filter's name if any: `acc`, `acc_stderr`. For tasks of a group or tag the
    task's name comes first. `tokenizer` replaces the folder's.
    """
    python = require_harness(harness_python)
    execution.open()
    with readable(model_folder, "language model"):
        model_sha256 = weights_sha256(model_folder)
        config = configuration(model_folder)
    require_generator(model_folder, config)
    with tempfile.TemporaryDirectory(prefix="relm-") as made:
        folder = tokenizer_folder(model_folder, tokenizer, config, Path(made) / "given")
        require_own_tokenizer(folder)
        require_ids_of_model(model_folder, folder, config)
        chosen, beginnings = choose_tokenizer(folder, Path(made) / "chosen", tokenizer or model_folder)
        mixed = {"mixed_precision_dtype": "bfloat16"} if execution.precision == "bfloat16" else {}
        request = {
            "tasks": [harness_task],
            "model_args": {
                "pretrained": str(link_model(model_folder, config, Path(made) / "model")),
                "tokenizer": str(chosen.resolve()),
                **mixed,
            },
            "limit": limit,
            "device": execution.device,
            "batch_size": batch_size(config, execution.batch_tokens),
        }
        found = run_harness(request, Path(made), execution.threads or usable_cores(), task_folder, python)
        used = sha256_of(folder / "tokenizer.json") if (folder / "tokenizer.json").exists() else None
    if differs := beginnings.get("tokenizer"):
        log.warning("%s: %s", model_folder, differs)
    facts = {"limit": limit, "tokenizer_sha256": used, "batch_size": request["batch_size"], **beginnings}
    return build_result(found, harness_task, model_sha256, facts)


def require_generator(folder: Path, config: Mapping[str, Any]) -> None:
    """Reject a model that does not write text, for which the harness would still compute figures."""
    names = config.get("architectures") or []
    if names and not any(name.endswith(GENERATORS) for name in names):
        raise RelmError(f"{folder}: is a {names[0]}, expected a model that writes text, as the harness's tasks require")


def require_ids_of_model(model_folder: Path, folder: Path, config: Mapping[str, Any]) -> None:
    """Reject a tokenizer, in `folder`, with ids that the model lacks, before the harness fails at an index."""
    sizes = [part.get("vocab_size") for part in (config, config.get("text_config")) if isinstance(part, Mapping)]
    size = next((size for size in sizes if isinstance(size, int)), None)
    if size is not None and (folder / "tokenizer.json").exists():
        require_vocabulary(model_folder, size, load_tokenizer(folder / "tokenizer.json").vocabulary_size)


def require_own_tokenizer(folder: Path) -> None:
    """Reject a tokenizer whose settings name files, which `transformers` would read from anywhere."""
    path = folder / TOKENIZER_SETTINGS[0]
    settings = read_settings(path)
    for key in ("fast_tokenizer_files", "vocab", "merges"):
        if settings.get(key) is not None:
            raise RelmError(f"{path}: key {key} names other files than tokenizer.json and is not supported; remove it")


def batch_size(config: Mapping[str, Any], batch_tokens: int) -> int:
    """Return the number of sequences in a batch, as if all had the model's full length; `LEAST_BATCH` by default."""
    positions = next((int(config[key]) for key in ("n_positions", "max_position_embeddings") if config.get(key)), POSITIONS)
    least = LEAST_BATCH * positions if batch_tokens >= DEVICES[HOST].evaluation_batch_tokens else 0
    return max(1, min(max(batch_tokens, least), LARGEST_LOGITS // int(config.get("vocab_size", 1))) // positions)


def tokenizer_folder(model_folder: Path, tokenizer: Path | None, config: Mapping[str, Any], made: Path) -> Path:
    """Return the tokenizer's folder for `transformers`: the model's, or `made` with the given tokenizer."""
    own = model_folder / "tokenizer.json"
    if tokenizer is None or (own.exists() and sha256_of(own) == sha256_of(tokenizer)):
        return model_folder
    loaded = load_tokenizer(tokenizer)
    made.mkdir()
    (made / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    settings = tokenizer_config(tokenizer, asdict(loaded.special), config.get("n_positions"))
    named = named_tokens(loaded, model_folder)
    settings |= {role: None if token is None else loaded.tokenizer.id_to_token(token) for role, token in named.items()}
    if "bos_token" in settings and "bos_token" not in named:  # an end of text, though another token may begin texts
        settings["bos_token"] = loaded.tokenizer.id_to_token(prefix_token(loaded, model_folder))
    write_json(made / "tokenizer_config.json", settings)
    return made


def link_model(model_folder: Path, config: Mapping[str, Any], made: Path) -> Path:
    """Return `made` with links to a model's files, and its configuration without implementations of attention.

    `transformers` then takes the implementation that it prefers for the model.
    """
    made.mkdir()
    for path in model_folder.resolve().iterdir():
        if path.name != "config.json":
            (made / path.name).symlink_to(path)
    write_json(made / "config.json", _without_attention(config))
    return made


def _without_attention(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_attention(inner) for key, inner in value.items() if key not in ATTENTION}
    return value


def build_result(found: Mapping[str, Any], harness_task: str, model_sha256: str, facts: Mapping[str, Any]) -> Scored:
    """Return the harness's results as a result; `facts` are more keys of the protocol."""
    figures, left_out = select_figures(found["results"], harness_task)
    if not figures:
        raise RelmError(
            f"lm_eval's {harness_task}: no figure is a finite number: {json.dumps(left_out) if left_out else 'none'}"
        )
    leaves, configs = found["n-samples"], found["configs"]
    examples = sum(count["effective"] for count in leaves.values())
    protocol = {
        "in_words": describe_protocol(found, harness_task, facts["limit"], examples),
        "harness": f"lm_eval {found['lm_eval_version']}",
        "harness_task": harness_task,
        **{key: found[key] for key in ("task_files", "data", "truncated")},
        "context": found.get("max_length"),
        **facts,
        "examples": examples,
        "tasks": {
            name: {"version": found["versions"].get(name), "examples": count["effective"], "of": count["original"]}
            | {key: value for key in ESSENTIALS if (value := configs.get(name, {}).get(key)) is not None}
            for name, count in leaves.items()
        },
        **({"left_out": left_out} if left_out else {}),
    }
    shown = [f"{name} {value:.4f}" for name, value in figures.items() if not name.endswith("_stderr")]
    sentence = f"lm_eval's {harness_task}: {', '.join(shown[:4])}; {examples:,} examples"
    return Scored(figures, protocol, model_sha256, sentence, (examples, "examples"))


def select_figures(
    results: Mapping[str, Mapping[str, Any]], harness_task: str
) -> tuple[dict[str, float | int], dict[str, str]]:
    """Return the figures by name, the task's first, and as text those that are not finite.

    The harness writes task -> `METRIC,FILTER` -> value.
    """
    figures: dict[str, float | int] = {}
    left_out: dict[str, str] = {}
    for name in sorted(results, key=lambda name: name != harness_task):
        for key, value in results[name].items():
            metric, comma, chosen = key.partition(",")
            if not comma or isinstance(value, bool) or value in (None, "N/A"):
                continue
            value = float(value) if isinstance(value, str) else value  # the harness writes float32 as text
            plain, error = metric.removesuffix("_stderr"), "stderr" * metric.endswith("_stderr")
            words = (name * (name != harness_task), plain, chosen * (chosen != "none"), error)
            figure = "_".join(snake_case(word) for word in words if word)
            if math.isfinite(value):
                figures[figure] = value
            else:
                left_out[figure] = str(value)
    return figures, left_out


def snake_case(name: str) -> str:
    """Return a name in snake case: `chrf++` -> `chrfpp`, `strict-match` -> `strict_match`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower().replace("+", "p")).strip("_")


def describe_protocol(found: Mapping[str, Any], harness_task: str, limit: int | None, examples: int) -> str:
    """Return the protocol in a sentence or two."""
    leaves = list(found["n-samples"])
    shots = {found["configs"].get(name, {}).get("num_fewshot", 0) for name in leaves}
    of_what = "" if leaves == [harness_task] else f" ({len(leaves)} tasks)"
    version = found["versions"].get(harness_task)
    numbered = f", version {version}" if version is not None else ""
    solved = f"{next(iter(shots)) or 'no'} solved examples" if len(shots) == 1 else "as many solved examples as each task says"
    own = " Task files of our own were read as well." if found["task_files"] else ""
    only = f" Only the first {limit:,} examples of each task." if limit else ""
    return (
        f"Task {harness_task}{of_what}{numbered} of EleutherAI's lm-evaluation-harness {found['lm_eval_version']}, by the "
        f"harness itself: {examples:,} examples, {solved} in front of each.{own}{only}"
    )
