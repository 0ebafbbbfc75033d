"""relm: from a recipe's name to a published folder. `snakemake results/NAME`; `snakemake list` shows the names."""

import re

from snakemake.utils import min_version

from relm import graph
from relm.recipes.identity import KEY, REVISIONS, work_folder
from relm.recipes.published_models import MODEL_FILES
from relm.recipes.run_folder import MODEL_PARTS
from relm.recipes.section import NAME
from relm.cluster import supervision

min_version("9.27")

WORK = work_folder()
DOCUMENTS = f"{WORK}/documents/{{dataset}}-{{key}}/{{shard}}"
EXAMPLES = f"{WORK}/examples/{{dataset}}-{{key}}/{{shard}}"
IMPORTED = f"{WORK}/examples/{{dataset}}-{{key}}/imported"
RUN = f"{WORK}/runs/{{recipe}}/{{fingerprint}}"
LOGS = f"{WORK}/logs"
IMAGES = graph.Images(workflow)
RERUNS = graph.Reruns(workflow)
ENVIRONMENTS = graph.Environments(workflow, IMAGES.requested)

supervision.run_steps_with_this_environment()
if supervision.is_main_process(workflow):
    supervision.clear_dead_locks()


container: IMAGES.of_step


wildcard_constraints:
    recipe=rf"(smoke/)?(?!(smoke|reference)$){NAME.pattern}(@{NAME.pattern})?",
    dataset=NAME.pattern,
    model=NAME.pattern,
    shard=NAME.pattern,
    split="train|held_out",
    file="|".join(map(re.escape, MODEL_FILES)),
    key=KEY.pattern,
    fingerprint=KEY.pattern,
    phase=NAME.pattern,
    of="eval|before|reference",
    test=NAME.pattern,
    task=NAME.pattern,


localrules:
    all,
    list,


onstart:
    ENVIRONMENTS.require()
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
        target=rf"(?!{re.escape(str(WORK))}/)(?!results/((smoke|reference)/)?{NAME.pattern}(@{NAME.pattern})?$).+",
