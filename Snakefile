"""relm: from a recipe's name to a published folder. `snakemake results/NAME`; `snakemake list` shows the names."""

import re

from relm.cluster import supervision

if supervision.is_main_process(workflow):
    supervision.handle_interrupts()  # before the other imports, which take a moment

from snakemake.utils import min_version

from relm import graph
from relm.artifact import record_of
from relm.plan.products import EVALUATION
from relm.recipes.identity import KEY
from relm.recipes.published_models import MODEL_FILES
from relm.recipes.run_folder import COMPILATION, MODEL_PARTS, RECORDS, WEIGHTS
from relm.recipes.run_name import VARIED_NAME
from relm.recipes.section import NAME
from relm.terminal import handler as terminal

min_version("9.27")

WORK = graph.usable_work_folder()
# No rule has a `benchmark:`. Snakemake takes its file for an output: an old one plans a model again, and one that cannot be
# written deletes the model. The record beside a step's output has its time and memory.
LOGS = f"{WORK}/logs"
IMAGES = graph.Images(workflow)
RERUNS = graph.Reruns(workflow)
SOURCES = graph.Sources(workflow, config)
REFUSALS = graph.Refusals(workflow, IMAGES, SOURCES.limit)

supervision.run_steps_with_this_environment()
IMAGES.prepare()
graph.apply_settings(workflow, config)
if supervision.is_main_process(workflow):
    terminal.attend(workflow, graph.find_seed, RERUNS.damaged)


# Snakemake passes it to jobs on other machines.
envvars:
    "RELM_VARIED",


container: IMAGES.of_step


wildcard_constraints:
    recipe=rf"(smoke/)?(?!(smoke|reference|papers)$){VARIED_NAME}",
    dataset=NAME.pattern,
    model=NAME.pattern,
    paper=NAME.pattern,
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
    supervision.forward_termination_to_jobs()
    SOURCES.delete_used_up()


onerror:
    supervision.exit_if_interrupted()


rule all:
    input:
        graph.all_results,


# The bare command starts nothing.
rule list:
    default_target: True
    log:
        f"{LOGS}/list.log",
    shell:
        "python -m relm list | tee {log:q}"


for key, targets in graph.papers().items():

    rule:
        name:
            f"paper_{key}"
        input:
            unpack(RERUNS.paper(key, targets)),
        output:
            directory(f"results/papers/{key}"),
        log:
            f"{LOGS}/papers/{key}.log",
        localrule: not RERUNS.shares_files
        params:
            key=key,
        shell:
            "python -m relm paper {params.key:q} --output {output:q} --log {log:q}"


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
        target=rf"(?!{re.escape(str(WORK))}/)(?!.*/{graph.AGAIN})(?!results/((smoke|reference|papers)/)?{VARIED_NAME}$).+",
