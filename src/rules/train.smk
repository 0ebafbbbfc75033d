# From examples to figures: pretrain {phase} -> evaluate {task}.
# Checkpoints are nobody's output: they lie beside `model/` and outlive a trainer that is stopped.


rule pretrain:
    input:
        manifest=graph.manifest,
        shards=lambda wildcards: ancient(graph.shards(wildcards)),
        tokenizer=lambda wildcards: ancient(graph.tokenizer(wildcards)),
        start_sidecar=graph.starting_weights_sidecars,
        start=lambda wildcards: ancient(graph.starting_weights(wildcards)),
    output:
        model=f"{RUN}/{{phase}}/model/model.safetensors",
        sidecar=f"{RUN}/{{phase}}/model/model.safetensors.json",
        parts=expand(
            f"{RUN}/{{{{phase}}}}/model/{{part}}",
            part=graph.MODEL_PARTS,
            allow_missing=True,
        ),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{phase}}.log",
    threads: graph.trainer_threads
    resources:
        accelerator=1,
        processes=graph.processes,
    params:
        start=graph.start_options,
        launcher=graph.launcher,
    shell:
        "{params.launcher} pretrain {wildcards.recipe} --phase {wildcards.phase} --fingerprint {wildcards.fingerprint}"
        " --manifest {input.manifest:q} --tokenizer {input.tokenizer:q} {params.start} --output {output.model:q} --log {log:q}"


rule evaluate_held_out:
    input:
        sidecar=graph.final_model_sidecar,
        manifest=graph.manifest,
        model=lambda wildcards: ancient(graph.final_model(wildcards)),
    output:
        f"{RUN}/eval/held_out.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/held_out.log",
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        context=graph.context_option,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm evaluate --model {input.model:q} --manifest {input.manifest:q} --context {params.context}"
        " --output {output:q} --log {log:q}"


rule evaluate_random_windows:
    input:
        sidecar=graph.final_model_sidecar,
        manifest=graph.manifest,
        model=lambda wildcards: ancient(graph.final_model(wildcards)),
    output:
        f"{RUN}/eval/random_windows.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/random_windows.log",
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        context=graph.context_option,
        windows=graph.random_windows_options,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm random-windows --model {input.model:q} --manifest {input.manifest:q} --context {params.context}"
        " {params.windows} --output {output:q} --log {log:q}"


rule write_samples:
    input:
        sidecar=graph.final_model_sidecar,
        model=lambda wildcards: ancient(graph.final_model(wildcards)),
    output:
        f"{RUN}/eval/samples.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/samples.log",
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm samples --model {input.model:q} --output {output:q} --log {log:q}"
