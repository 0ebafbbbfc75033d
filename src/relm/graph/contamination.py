"""Inputs, outputs and parameters of the rule that compares a published test with the training documents."""

import shlex
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from relm.artifact import sidecar_of
from relm.errors import RelmError
from relm.graph.asking import report_faults, sha256_option, sidecars, strings
from relm.graph.runs import plan_of_run, require_key


@report_faults
def contamination_inputs(wildcards: Any) -> dict[str, Any]:
    """Return the test's file and the training documents, which are `ancient`, and their sidecars.

    Raises:
        RelmError: the recipe does not ask for this count.
    """
    plan = plan_of_run(wildcards)
    if wildcards.test not in plan.contamination():
        raise RelmError(
            f"recipe {plan.name} counts no items of {wildcards.test}; set contamination: true, and name the test in evaluate"
        )
    require_key(plan.contamination()[wildcards.test], wildcards)
    file, documents = plan.test_downloads(wildcards.test)["file"], [plan.documents(shard, "train") for shard in plan.shards]
    return {
        "sidecars": [str(sidecar_of(file)), *sidecars(documents)],
        "file": ancient(str(file)),
        "documents": ancient(strings(documents)),
    }


@report_faults
def contamination_outputs(wildcards: Any) -> list[Path]:
    """Return the counts of a test's items, which have no sidecar."""
    return [plan_of_run(wildcards).contamination()[wildcards.test]]


@report_faults
def contamination_options(wildcards: Any) -> str:
    """Return the options of `relm contamination` that describe the test."""
    test = plan_of_run(wildcards).tests[wildcards.test]
    key = ["--text-key", test.lambada.text_key] if test.protocol == "lambada" else []
    expected = {name: sha256 for name, sha256 in test.sha256.items() if name == test.file}
    return " ".join(filter(None, [shlex.join(["--format", str(test.item_format), *key]), sha256_option(expected)]))
