# From examples to a model: pretrain {phase}.
# Checkpoints, and the logs that training appends to, are not outputs, so that Snakemake keeps them when the trainer is stopped. They
# are next to `model/`; the outputs have copies of the final logs.


# The document of a run is pages long, so the command has its fingerprint, which it checks.
rule pretrain:
    input:
        unpack(graph.inputs("pretrain")),
    output:
        model=graph.path(WEIGHTS),
        sidecar=graph.sidecar(WEIGHTS),
        parts=list(map(graph.path, MODEL_PARTS)),
        record=graph.record(WEIGHTS),
        logs=list(map(graph.path, RECORDS)),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{phase}}.log",
    container:
        IMAGES.of_training
    threads: graph.trainer_threads
    resources:
        accelerator=graph.training_request("accelerator"),
        processes=graph.training_request("processes"),
        gres=graph.training_request("gres"),
        nodes=graph.training_request("nodes"),
        mpi=graph.training_request("mpi"),
        tasks=graph.training_request("tasks"),
        tasks_per_node=graph.training_request("tasks_per_node"),
        tasks_per_gpu=graph.training_request("tasks_per_gpu"),
        cpus_per_task=graph.training_request("cpus_per_task"),
        mem_mb=graph.training_request("mem_mb"),
        disk_mb=graph.training_request("disk_mb"),
        runtime=graph.training_request("runtime"),
    params:
        command=graph.command("pretrain"),
    shell:
        "{params.command} --log {log:q}"


# Not an input of a rule, because it needs the TPU's environment. Request it by `snakemake work/runs/NAME/FINGERPRINT/compile.json`.
rule compile:
    input:
        unpack(RERUNS.compiled),
    output:
        compilation=graph.path(COMPILATION),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/compile.log",
    container:
        IMAGES.of_compiling
    params:
        command=graph.command("compile"),
    shell:
        "{params.command} --log {log:q}"
