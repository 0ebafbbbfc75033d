"""relm: from a recipe's name to a published folder. `snakemake results/NAME`; `snakemake list` shows the names."""

import re

from snakemake.utils import min_version

from relm import graph
from relm.recipes.identity import REVISIONS, work_folder
from relm.recipes.run_folder import MODEL_PARTS
from relm.cluster import supervision

min_version("9.27")

WORK = work_folder()
DOCUMENTS = f"{WORK}/documents/{{dataset}}-{{key}}/{{shard}}"
EXAMPLES = f"{WORK}/examples/{{dataset}}-{{key}}/{{shard}}"
RUN = f"{WORK}/runs/{{recipe}}/{{fingerprint}}"
LOGS = f"{WORK}/logs"
IMAGES = graph.Images(workflow)
STALE = graph.Stale(workflow)

graph.compare_no_absent_parameters()
supervision.run_steps_with_this_environment()
if supervision.is_main_process(workflow):
    supervision.clear_dead_locks()


container: IMAGES.of_step


wildcard_constraints:
    recipe=rf"(smoke/)?(?!(smoke|reference)$){graph.NAME}(@{graph.NAME})?",
    dataset=graph.NAME,
    model=graph.NAME,
    shard=graph.NAME,
    file=graph.FILE,
    key=graph.KEY,
    fingerprint=graph.KEY,
    phase=graph.NAME,
    of="eval|before|reference",
    test=graph.NAME,
    task=graph.NAME,


localrules:
    all,
    list,


onstart:
    supervision.forward_signals_to_jobs()


rule all:
    default_target: True
    input:
        graph.all_results,


rule list:
    log:
        f"{LOGS}/list.log",
    shell:
        "python -m relm list --log {log:q}"


for key, targets in graph.papers().items():

    rule:
        name:
            f"paper_{key}"
        input:
            targets,


include: "src/rules/data.smk"
include: "src/rules/train.smk"
include: "src/rules/evaluate.smk"
include: "src/rules/report.smk"


# Any target that no other rule makes: its input function raises an error with the name of the nearest target.
rule unknown_target:
    input:
        graph.nearest_target,
    output:
        "{target}",
    wildcard_constraints:
        target=rf"(?!{re.escape(str(WORK))}/)(?!results/((smoke|reference)/)?{graph.NAME}(@{graph.NAME})?$).+",
