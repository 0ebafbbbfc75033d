# ruff: noqa: F401
"""The functions that rules call while Snakemake builds its graph: inputs, parameters and targets for given wildcards.

They are fast: no torch, no network. A fault in one recipe is an error only for targets that need that recipe.
"""

from relm.graph.asking import path, record, sidecar
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
from relm.graph.images import Images
from relm.graph.jobs import command, inputs
from relm.graph.refusals import Refusals, usable_work_folder
from relm.graph.requests import evaluation_request, training_request
from relm.graph.reruns import AGAIN, Reruns
from relm.graph.runs import find_seed, trainer_threads
from relm.graph.shards import Sources
from relm.graph.targets import all_results, compared_figures, nearest_target, papers
from relm.graph.variations import apply_settings
