"""The functions that rules call while Snakemake builds its graph: inputs, parameters and targets for given wildcards.

They are fast: no torch, no network. A fault in one recipe is an error only for targets that need that recipe.
"""

from relm.graph.asking import FILE, KEY, NAME
from relm.graph.data import (
    dataset_description,
    documents_inputs,
    documents_job,
    download_sha256,
    examples_inputs,
    examples_job,
    shard_sidecars,
    tokenizer_inputs,
    tokenizer_job,
)
from relm.graph.evaluations import (
    evaluated_weights,
    evaluation_accelerators,
    evaluation_job,
    evaluation_options,
    evaluations_before,
    published_reference,
    reference_inputs,
)
from relm.graph.images import Images
from relm.graph.runs import (
    compiled_for,
    described,
    fingerprint,
    judged,
    judged_inputs,
    launcher,
    processes,
    start_options,
    trainer_threads,
    training_inputs,
)
from relm.graph.stale import Stale, compare_no_absent_parameters
from relm.graph.targets import all_results, nearest_target, papers

__all__ = [
    "FILE",
    "KEY",
    "NAME",
    "Images",
    "Stale",
    "all_results",
    "compare_no_absent_parameters",
    "compiled_for",
    "dataset_description",
    "described",
    "documents_inputs",
    "documents_job",
    "download_sha256",
    "evaluated_weights",
    "evaluation_accelerators",
    "evaluation_job",
    "evaluation_options",
    "evaluations_before",
    "examples_inputs",
    "examples_job",
    "fingerprint",
    "judged",
    "judged_inputs",
    "launcher",
    "nearest_target",
    "papers",
    "processes",
    "published_reference",
    "reference_inputs",
    "shard_sidecars",
    "start_options",
    "tokenizer_inputs",
    "tokenizer_job",
    "trainer_threads",
    "training_inputs",
]
