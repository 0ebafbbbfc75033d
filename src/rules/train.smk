# From examples to a model: pretrain {phase}.
# Checkpoints are nobody's output: they lie beside `model/` and outlive a trainer that is stopped.


# Its job is named and not spelled out: the whole document of a run is pages long. The command refuses another fingerprint.
rule pretrain:
    input:
        unpack(graph.training_inputs),
    output:
        model=f"{RUN}/{{phase}}/model/model.safetensors",
        sidecar=f"{RUN}/{{phase}}/model/model.safetensors.json",
        parts=expand(
            f"{RUN}/{{{{phase}}}}/model/{{part}}",
            part=MODEL_PARTS,
            allow_missing=True,
        ),
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{phase}}.log",
    container:
        IMAGES.of_training
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


# Nobody's input: it takes the TPU's environment. `snakemake work/runs/NAME/FINGERPRINT/compile.json` asks for it.
rule compile:
    output:
        f"{RUN}/compile.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/compile.log",
    container:
        IMAGES.of_compiling
    params:
        settings=graph.compiled_for,
    shell:
        "python -m relm compile {wildcards.recipe} --fingerprint {wildcards.fingerprint} --topology {params.settings[topology]}"
        " --output {output:q} --log {log:q}"
