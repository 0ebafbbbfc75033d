"""The functions that rules call while Snakemake builds its graph: inputs, parameters and targets for given wildcards.

They are fast: no torch, no network. A fault in one recipe is an error only for targets that need that recipe.
"""

from relm.graph.contamination import contamination_inputs, contamination_options, contamination_outputs
from relm.graph.data import (
    data_inputs,
    data_job,
    data_outputs,
    documents_command,
    download_sha256,
    kept_inputs,
    list_inputs,
    list_outputs,
    range_outputs,
    range_source,
    shard_sidecars,
)
from relm.graph.data_requests import (
    documents_disk,
    documents_runtime,
    download_disk,
    examples_disk,
    examples_runtime,
    import_disk,
    workers_memory,
)
from relm.graph.default_requests import DISK_MB, MEMORY_MB, RUNTIME, SMALL_MEMORY_MB, START
from relm.graph.evaluations import (
    evaluated_weights,
    evaluation_inputs,
    evaluation_job,
    evaluation_options,
    judged_inputs,
)
from relm.graph.images import Images
from relm.graph.refusals import Refusals, usable_work_folder
from relm.graph.requests import evaluation_request, training_request
from relm.graph.reruns import AGAIN, Reruns
from relm.graph.runs import (
    find_seed,
    fingerprint,
    launcher,
    start_options,
    trainer_threads,
    training_inputs,
)
from relm.graph.shards import Sources
from relm.graph.targets import all_results, compared_figures, nearest_target, papers
from relm.graph.variations import apply_settings, set_options

__all__ = [
    "AGAIN",
    "DISK_MB",
    "MEMORY_MB",
    "RUNTIME",
    "SMALL_MEMORY_MB",
    "START",
    "Images",
    "Refusals",
    "Reruns",
    "Sources",
    "all_results",
    "apply_settings",
    "compared_figures",
    "contamination_inputs",
    "contamination_options",
    "contamination_outputs",
    "data_inputs",
    "data_job",
    "data_outputs",
    "documents_command",
    "documents_disk",
    "documents_runtime",
    "download_disk",
    "download_sha256",
    "evaluated_weights",
    "evaluation_inputs",
    "evaluation_job",
    "evaluation_options",
    "evaluation_request",
    "examples_disk",
    "examples_runtime",
    "find_seed",
    "fingerprint",
    "import_disk",
    "judged_inputs",
    "kept_inputs",
    "launcher",
    "list_inputs",
    "list_outputs",
    "nearest_target",
    "papers",
    "range_outputs",
    "range_source",
    "set_options",
    "shard_sidecars",
    "start_options",
    "trainer_threads",
    "training_inputs",
    "training_request",
    "usable_work_folder",
    "workers_memory",
]
