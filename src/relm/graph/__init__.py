"""What the rules ask while Snakemake builds its graph: inputs, parameters and targets as functions of wildcards.

Everything here is cheap: no torch, no network. A fault in one recipe is an error only for those who ask for that recipe.
"""

from relm.graph.asking import FILE, KEY, NAME, PROJECT
from relm.graph.data import (
    dataset_description,
    dataset_file_sha256,
    documents_inputs,
    documents_job,
    examples_inputs,
    examples_job,
    model_file_sha256,
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
    reference_evaluations,
    reference_weights,
    test_file_sha256,
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
from relm.recipes.run_folder import MODEL_PARTS

__all__ = [
    "FILE",
    "KEY",
    "MODEL_PARTS",
    "NAME",
    "PROJECT",
    "Images",
    "Stale",
    "all_results",
    "compare_no_absent_parameters",
    "compiled_for",
    "dataset_description",
    "dataset_file_sha256",
    "described",
    "documents_inputs",
    "documents_job",
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
    "model_file_sha256",
    "nearest_target",
    "papers",
    "processes",
    "published_reference",
    "reference_evaluations",
    "reference_weights",
    "shard_sidecars",
    "start_options",
    "test_file_sha256",
    "tokenizer_inputs",
    "tokenizer_job",
    "trainer_threads",
    "training_inputs",
]
