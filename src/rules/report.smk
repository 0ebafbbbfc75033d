# From figures to the published folder: verify -> report -> publish.


rule verify:
    input:
        unpack(graph.inputs("verify")),
    output:
        verdict=graph.path("verdict"),
        record=graph.record("verdict"),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/verify/{{key}}.log",
    params:
        command=graph.command("verify"),
    shell:
        "{params.command} --log {log:q}"


rule report:
    input:
        unpack(RERUNS.reported),
    output:
        report=graph.path("report.html"),
        card=graph.path("README.md"),
        recipe=graph.path("recipe.json"),
        provenance=graph.path("provenance.json"),
        crate=graph.path("ro-crate-metadata.json"),
        record=graph.record("report.html"),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/report/{{key}}.log",
    params:
        command=graph.command("report"),
    shell:
        "{params.command} --log {log:q}"


# The one input of a published folder with damaged files. It fails and says more; so nothing is published over the folder.
rule check_damaged:
    output:
        temp(f"{WORK}/damaged/{{recipe}}"),
    log:
        f"{LOGS}/damaged/{{recipe}}.log",
    shell:
        "python -m relm check results/{wildcards.recipe:q} --log {log:q} && touch {output:q}"


# The only directory output. Snakemake deletes it before the rule runs and after it fails, so publishing must be fast.
# Storage plugins look for a folder in the process that wrote it, so it is published by Snakemake's own where files are carried.
rule publish:
    input:
        unpack(RERUNS.published),
    output:
        folder=directory("results/{recipe}"),
    log:
        f"{LOGS}/publish/{{recipe}}.log",
    localrule: not RERUNS.shares_files
    params:
        command=graph.command("publish"),
    shell:
        "{params.command} --log {log:q}"


# Evaluate the authors' released weights with the same code, so that a wrong evaluation is found before an expensive run.
rule verify_reference:
    input:
        unpack(graph.inputs("verify_reference")),
    output:
        verdict=graph.path("reference verdict"),
        record=graph.record("reference verdict"),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/verify/{{key}}_reference.log",
    params:
        command=graph.command("verify_reference"),
    shell:
        "{params.command} --log {log:q}"


rule publish_reference:
    input:
        unpack(RERUNS.published_reference),
    output:
        folder=directory("results/reference/{recipe}"),
    log:
        f"{LOGS}/publish/reference/{{recipe}}.log",
    localrule: not RERUNS.shares_files
    params:
        command=graph.command("publish_reference"),
    shell:
        "{params.command} --log {log:q}"


# What one change costs: the figures of a paper's recipes that have a control, and those of the controls.
rule compare_with_controls:
    input:
        graph.compared_figures,
    output:
        f"{WORK}/papers/{{paper}}/{{key}}/differences.md",
    log:
        f"{LOGS}/papers/{{paper}}/{{key}}/differences.log",
    shell:
        "python -m relm differences {wildcards.paper} --output {output:q} --log {log:q}"
