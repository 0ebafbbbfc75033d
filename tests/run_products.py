"""The products of a run that depend only on its recipe, whatever happened while they were made."""

import hashlib
import json
import re
from pathlib import Path

from relm.plan.products import match_run_files
from relm.recipes.plan import Plan
from relm.recipes.run_folder import OF_ONE_MACHINE

TIMES = re.compile(r"seconds|per_second|memory|started|ended|resumed_after|machines")
FILES = (
    "work/documents/*/*",
    "work/tokenizers/*/*",
    "work/examples/*/*",
    "work/runs/{recipe}/*/main/model/*",
    "work/runs/{recipe}/*/eval/*/*.json",
    "work/runs/{recipe}/*/verify/*/verify.json",
    "results/{recipe}/*.json",
    "results/{recipe}/eval/*.json",
    "results/{recipe}/*.safetensors",
)
RECORDS = ("provenance.json", "ro-crate-metadata.json")
"""Published files with the times of their steps."""


def hash_products(folder: Path, recipe: str) -> dict[str, str]:
    """Return path -> sha256 of every product that must not depend on interruptions, without times and their marks."""
    hashes = {}
    for pattern in FILES:
        for path in folder.glob(pattern.format(recipe=recipe)):
            if not path.name.endswith(".record.json") and path.name not in RECORDS:
                hashes[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in folder.glob(f"work/runs/{recipe}/*/main/train.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{key: value for key, value in line.items() if not TIMES.search(key)} for line in lines]
        hashes[str(path.relative_to(folder))] = hashlib.sha256(json.dumps(kept).encode()).hexdigest()
    return hashes


def list_unknown(plan: Plan) -> list[str]:
    """Return the files in a run's folder that are in no row of the product table and belong to no machine."""
    known, folder = match_run_files(plan), plan.run_folder
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return [name for name in names if not known.fullmatch(name) and not set(OF_ONE_MACHINE) & set(name.split("/"))]
