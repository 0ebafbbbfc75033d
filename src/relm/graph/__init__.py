"""The functions that rules call while Snakemake builds its graph: inputs, parameters and targets for given wildcards.

They are fast: no torch, no network. A fault in one recipe is an error only for targets that need that recipe.
"""

from relm.graph.data import data_inputs, data_job, download_sha256, shard_sidecars
from relm.graph.environments import Environments
from relm.graph.evaluations import (
    evaluated_weights,
    evaluation_accelerators,
    evaluation_job,
    evaluation_options,
    evaluations_before,
    judged_inputs,
    published_reference,
)
from relm.graph.images import Images
from relm.graph.requests import cores, evaluation_cores, evaluation_gres, gres, hosts, memory, runtime
from relm.graph.reruns import Reruns
from relm.graph.runs import (
    compiled_for,
    described,
    fingerprint,
    judged,
    launcher,
    processes,
    start_options,
    trainer_threads,
    training_inputs,
)
from relm.graph.targets import all_results, nearest_target, papers

__all__ = [
    "Environments",
    "Images",
    "Reruns",
    "all_results",
    "compiled_for",
    "cores",
    "data_inputs",
    "data_job",
    "described",
    "download_sha256",
    "evaluated_weights",
    "evaluation_accelerators",
    "evaluation_cores",
    "evaluation_gres",
    "evaluation_job",
    "evaluation_options",
    "evaluations_before",
    "fingerprint",
    "gres",
    "hosts",
    "judged",
    "judged_inputs",
    "launcher",
    "memory",
    "nearest_target",
    "papers",
    "processes",
    "published_reference",
    "runtime",
    "shard_sidecars",
    "start_options",
    "trainer_threads",
    "training_inputs",
]
