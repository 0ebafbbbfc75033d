# From a model to figures: evaluate {task}, of the trained weights (eval), the starting weights (before), or the authors'
# released ones (reference). Evaluations are separate jobs, so that a failure does not affect the others.


rule download_test:
    output:
        sidecar=graph.sidecar("test download", file="{shard}"),
        file=graph.path("test download", file="{shard}"),
        record=graph.record("test download", file="{shard}"),
    log:
        f"{LOGS}/download/evaluations/{{test}}/{{key}}/{{shard}}.log",
    resources:
        mem_mb=graph.SMALL_MEMORY_MB,
        disk_mb=graph.download_disk,
        runtime=graph.RUNTIME,
    params:
        command=graph.command("download_test"),
    shell:
        "{params.command} --log {log:q}"


rule evaluate:
    input:
        unpack(graph.inputs("evaluate")),
    output:
        figures=f"{WORK}/{EVALUATION}",
        record=record_of(f"{WORK}/{EVALUATION}"),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/{{key}}/{{task}}.log",
    container:
        IMAGES.of_evaluation
    threads: lambda wildcards: workflow.cores or 1 if graph.evaluation_request("accelerator")(wildcards) else 1
    resources:
        accelerator=graph.evaluation_request("accelerator"),
        gres=graph.evaluation_request("gres"),
        cpus_per_task=graph.evaluation_request("cpus_per_task"),
        mem_mb=graph.evaluation_request("mem_mb"),
        runtime=graph.evaluation_request("runtime"),
    params:
        command=graph.command("evaluate"),
    shell:
        "{params.command} --log {log:q}"
