"""Where a step belongs: which role's image, whether with the network, and which folders it reads beside the checkout.

The one place that decides it; the rules, the shim for Snakemake and `relm command` all ask here.
"""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relm.containers.lock import ROLES, Role
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.identity import work_folder
from relm.recipes.plan import Plan, Project
from relm.recipes.published_models import PretrainedModel, load_model
from relm.recipes.recipe import Recipe

# Steps that run where the recipe trains; evaluations follow it to a GPU alone, all others stay on the CPU.
TRAINING = frozenset({"pretrain", "rehearse", "estimate"})
# Whose compiler a step asks, and where it reads or writes, wherever it runs: that is among the packages of one image alone.
COMPILERS: dict[str, Role] = {"compile": "tpu"}
STORES: dict[str, Role] = {"gs": "tpu"}
# Steps whose first argument is a recipe's name.
OF_A_RECIPE = TRAINING | {"compile", "training-speed", "verify", "report", "publish", "status"}
# How a rule starts a step: alone or, of several processes, by torchrun.
STEP_COMMAND = re.compile(r"\b(?:python|torchrun (?:--[\w-]+(?:[ =]\w+)? )*)\s*-m (?:-- )?relm(?:\s+|$)")


@dataclass(frozen=True)
class Placement:
    """Where one step runs."""

    role: Role
    network: bool
    """Whether it needs the network for itself, whatever its device needs."""
    reads: tuple[Path, ...] = ()
    """Folders beside the checkout and the work folder, absolute, only read."""


def training_role(recipe: Recipe) -> Role:
    """Of the image that a recipe is trained in."""
    return recipe.run.device


def evaluation_role(recipe: Recipe) -> Role:
    """Of the image that its evaluations run in."""
    return "cuda" if recipe.run.device == "cuda" else "cpu"


def words_of(command: str) -> list[str]:
    """The words after `relm` in a shell command such as Snakemake hands over; empty where it runs no step of relm."""
    found = STEP_COMMAND.search(command)
    return shlex.split(command[found.end() :]) if found else []


def placement(words: Sequence[str], project: Project) -> Placement:
    """Where a step runs.

    Args:
        words: the step's name and its arguments, without `relm`.
        project: whose recipes the arguments name.
    """
    if not words:
        return Placement("cpu", network=False)
    plan = _plan(words, project)
    asked = _option(words, "--device")
    role: Role = next((role for role in ROLES if role == asked), _packaged_in(words))
    if plan is not None and words[0] in TRAINING:
        role = training_role(plan.recipe)
    return Placement(role, _needs_network(words, plan), tuple(_read_beside(words, plan)))


def _packaged_in(words: Sequence[str]) -> Role:
    """The image that has a step's packages."""
    if words[0] in ("push", "pull"):
        schemes = (word.partition("://")[0] for word in words if "://" in word)
        return next((STORES[scheme] for scheme in schemes if scheme in STORES), "cpu")
    return COMPILERS.get(words[0], "cpu")


def _option(words: Sequence[str], name: str) -> str | None:
    """The value of an option, given as one word or as two."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _plan(words: Sequence[str], project: Project) -> Plan | None:
    """Of the recipe that the words name; none where they ask for help instead."""
    named = words[0] in OF_A_RECIPE and len(words) > 1 and not words[1].startswith("-")
    return project.plan(words[1]) if named else None


def _dataset(words: Sequence[str]) -> Dataset | None:
    named = _option(words, "--dataset")
    return load_dataset(Path(named)) if named and Path(named).exists() else None


def _needs_network(words: Sequence[str], plan: Plan | None) -> bool:
    """Downloads, a bucket, documents that are read from the hub, and a log that goes to a server while training."""
    step = words[0]
    if step == "extract":
        dataset = _dataset(words)
        return dataset is not None and dataset.hub is not None
    if step == "pretrain" and plan is not None:
        return "wandb" in plan.recipe.run.loggers and os.environ.get("WANDB_MODE") == "online"
    return step in ("download", "push", "pull")


def _read_beside(words: Sequence[str], plan: Plan | None) -> list[Path]:
    """Folders of one's own that are a dataset or a model, by whose content a recipe's paths are named, and the mirrors."""
    step = words[0]
    parts: list[Dataset | PretrainedModel | None] = [_dataset(words)]
    if plan is not None:
        parts += [plan.dataset, plan.tokenizer_model, plan.init_model, plan.reference_model]
    if step == "download" and (model := _option(words, "--model")):
        parts.append(load_model(Path(model)))
    named = [part.folder for part in parts if part is not None and part.folder is not None]
    if step == "download":
        named += [folder for folder in os.environ.get("RELM_MIRROR", "").split(os.pathsep) if folder]
    inside = (Path.cwd(), work_folder().resolve())
    folders = dict.fromkeys(Path(name).expanduser().resolve() for name in named)
    return [folder for folder in folders if not any(folder.is_relative_to(mounted) for mounted in inside)]
