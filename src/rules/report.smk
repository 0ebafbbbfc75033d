# From figures to the published folder: verify -> report -> publish.


rule verify:
    input:
        evaluations=graph.evaluations,
        sidecar=graph.final_model_sidecar,
        model=lambda wildcards: ancient(graph.final_model(wildcards)),
    output:
        f"{RUN}/verify.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/verify.log",
    params:
        expect=graph.judged,
    shell:
        "python -m relm verify {wildcards.recipe} --fingerprint {wildcards.fingerprint} --model {input.model}"
        " --evaluations {input.evaluations} --output {output} --log {log}"


rule report:
    input:
        verify=f"{RUN}/verify.json",
        evaluations=graph.evaluations,
        sidecar=graph.final_model_sidecar,
        model=lambda wildcards: ancient(graph.final_model(wildcards)),
    output:
        report=f"{RUN}/report/report.html",
        card=f"{RUN}/report/README.md",
        recipe=f"{RUN}/report/recipe.json",
        provenance=f"{RUN}/report/provenance.json",
        crate=f"{RUN}/report/ro-crate-metadata.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/report.log",
    params:
        described=graph.described,
    shell:
        "python -m relm report {wildcards.recipe} --fingerprint {wildcards.fingerprint} --verify {input.verify}"
        " --evaluations {input.evaluations} --output {output.report} --log {log}"


# The one directory output. Snakemake deletes it before the rule runs and after it fails, so nothing here takes a second.
rule publish:
    input:
        unpack(graph.published),
    output:
        directory("results/{recipe}"),
    log:
        f"{LOGS}/publish/{{recipe}}.log",
    shell:
        "python -m relm publish {wildcards.recipe} --output {output} --log {log}"
