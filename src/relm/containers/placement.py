"""Decide a step's image, whether it has the network, and which folders outside the checkout it reads.

The rules, the shim for Snakemake, `relm images run` and `relm STEP NAME --print` all use this.
"""

import itertools
import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relm.containers.lock import Role
from relm.devices.ranks import PROCESSES
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.evaluation.evaluation_place import evaluation_device
from relm.recipes.files.own_folders import expand_home, require_consent, resolve_own_folder
from relm.recipes.identity import work_folder
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.published_models import PretrainedModel, load_model
from relm.recipes.recipe import Recipe
from relm.recipes.redaction import LOGGING_STEP
from relm.recipes.run_name import RunName

# Steps that run on the recipe's device. Evaluations follow it to a GPU, fine-tuning also to a TPU; all others use the CPU.
TRAINING = frozenset({"pretrain", "rehearse", "estimate"})
# Steps whose first argument is a recipe's name.
OF_A_RECIPE = TRAINING | {"compile", "verify", "report", "publish", "status"}
# A rule starts a step in one process, in several or, on IPUs, by PopRun with a variable of Poplar's.
_PYTHON = r"(?:env '?[A-Z_]+=[^ ]+ )?(?:poprun (?:[^ |&;]+ )+?)?python"
STEP_COMMAND = re.compile(rf"\b{_PYTHON}\s*-m relm(?:\s+|$)(?:{PROCESSES} \d+ )?")


@dataclass(frozen=True)
class Placement:
    """The image, the network and the folders of one step."""

    role: Role
    network: bool
    """True if the step itself needs the network; its device may need it anyway."""
    reads: tuple[Path, ...] = ()
    """Absolute folders outside the checkout and the work folder that it reads."""
    logs: bool = False
    """True if it sends a log to a server and so needs the loggers' keys."""


def training_role(recipe: Recipe) -> Role:
    """Return the role of the image for training a recipe."""
    return DEVICES[recipe.run.device].image


def evaluation_role(plan: Plan, task: str) -> Role:
    """Return the role of the image that one of a recipe's evaluations runs in."""
    return HOST if plan.evaluation(task).reads_only_log else DEVICES[evaluation_device(plan, task)].image


def step_role(step: str) -> Role:
    """Return the role of the image that has a step's packages."""
    return next((declaration.image for declaration in DEVICES if step in declaration.steps), HOST)


def parse_step_command(command: str) -> list[str]:
    """Return the words after `relm` in Snakemake's shell command; empty if it runs no step of relm."""
    found = STEP_COMMAND.search(command)
    return shlex.split(command[found.end() :]) if found else []


def place_step(words: Sequence[str], project: Project) -> Placement:
    """Decide where a step runs; `words` are its name and arguments, without `relm`."""
    if not words:
        return Placement(HOST, network=False)
    plan = _find_plan(words, project)
    device = _find_option(words, "--device")
    role = DEVICES[device].image if device and device in DEVICES else _find_packaged(words)
    if plan is not None and words[0] in TRAINING:
        role = training_role(plan.recipe)
    logs = _logs_to_server(words, plan)
    return Placement(role, logs or _needs_network(words), tuple(_list_read(words, plan)), logs)


def _find_packaged(words: Sequence[str]) -> Role:
    """Return the role whose image has a step's packages."""
    if words[0] in ("push", "pull"):
        schemes = {word.partition("://")[0] for word in words if "://" in word}
        return next((declaration.image for declaration in DEVICES if schemes.intersection(declaration.stores)), HOST)
    return step_role(words[0])


def _find_option(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option that is one word or two."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _find_plan(words: Sequence[str], project: Project) -> Plan | None:
    """Return the plan of the recipe that the words name, if they name one."""
    has_name = words[0] in OF_A_RECIPE and len(words) > 1 and not words[1].startswith("-")
    if not has_name:
        return None
    settings = [following for word, following in itertools.pairwise(words) if word == "--set"]
    return project.plan(str(RunName.parse(words[1]).vary(settings)))


def _load_dataset(words: Sequence[str]) -> Dataset | None:
    path = _find_option(words, "--dataset")
    return load_dataset(Path(path)) if path and Path(path).exists() else None


def _find_content(words: Sequence[str]) -> Any:
    """Return `content` in a job's document: a list of files, a mapping for a hub dataset, or a folder's digest."""
    try:
        document = json.loads(_find_option(words, "--job") or "{}")
    except (ValueError, RecursionError):
        return None  # the step reports the fault
    return document.get("content") if isinstance(document, dict) else None


def _logs_to_server(words: Sequence[str], plan: Plan | None) -> bool:
    """Return True for training that logs to a server."""
    if words[0] != LOGGING_STEP or plan is None:
        return False
    return "wandb" in plan.recipe.run.loggers and os.environ.get("WANDB_MODE") == "online"


def _needs_network(words: Sequence[str]) -> bool:
    """Return True for downloads, a bucket, and documents read from the hub."""
    step = words[0]
    if step == "extract":
        dataset = _load_dataset(words)
        return isinstance(_find_content(words), dict) or (dataset is not None and dataset.hub is not None)
    return step in ("download", "push", "pull")


def _list_read(words: Sequence[str], plan: Plan | None) -> list[Path]:
    """Return the user's folders with a dataset or a model, and the mirrors."""
    step = words[0]
    parts: list[Dataset | PretrainedModel | None] = [_load_dataset(words)]
    if plan is not None:
        parts += [plan.dataset, plan.tokenizer_model, plan.init_model, plan.reference_model]
    if step == "download" and (model := _find_option(words, "--model")):
        parts.append(load_model(Path(model)))
    given = [part.folder for part in parts if part is not None and part.folder is not None]
    typed = (_find_option(words, "--source") or "") if step == "extract" else ""
    for name in given:  # check before an engine mounts it
        if resolve_own_folder(name, "folder") != expand_home(typed):
            require_consent(name, "folder")
    if step == "extract" and isinstance(_find_content(words), str):
        given.append(typed)
    if step == "download":
        given += [folder for folder in os.environ.get("RELM_MIRROR", "").split(os.pathsep) if folder]
    inside = (Path.cwd(), work_folder().resolve())
    folders = dict.fromkeys(expand_home(name).resolve() for name in given)
    return [folder for folder in folders if not any(folder.is_relative_to(mounted) for mounted in inside)]
