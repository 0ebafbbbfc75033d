# From a model to figures: evaluate {task}, of the trained weights (eval), those that training started from (before), or the
# authors' released ones (reference). One that fails leaves the others.


rule download_test:
    output:
        sidecar=f"{WORK}/downloads/evaluations/{{test}}/{{key}}/{{shard}}.json",
        file=f"{WORK}/downloads/evaluations/{{test}}/{{key}}/{{shard}}",
    log:
        f"{LOGS}/download/evaluations/{{test}}/{{key}}/{{shard}}.log",
    params:
        sha256=graph.test_file_sha256,
    shell:
        "python -m relm download --test recipes/evaluations/{wildcards.test}.yaml --file {wildcards.shard}"
        " --sha256 {params.sha256} --output {output.file:q} --log {log:q}"


rule evaluate_held_out:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        manifest=graph.manifest,
        shards=lambda wildcards: ancient(graph.example_shards(wildcards)),
    output:
        f"{RUN}/{{of}}/held_out.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/held_out.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.device_option,
        context=graph.context_option,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm held-out --model {params.model:q} {params.expected} --manifest {input.manifest:q} --context {params.context}"
        " {params.how} --output {output:q} --log {log:q}"


rule evaluate_random_windows:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        manifest=graph.manifest,
        shards=lambda wildcards: ancient(graph.example_shards(wildcards)),
    output:
        f"{RUN}/{{of}}/random_windows.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/random_windows.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.device_option,
        context=graph.context_option,
        windows=graph.random_windows_options,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm random-windows --model {params.model:q} {params.expected} --manifest {input.manifest:q} --context {params.context}"
        " {params.windows} {params.how} --output {output:q} --log {log:q}"


rule evaluate_masked_lm:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        manifest=graph.manifest,
        shards=lambda wildcards: ancient(graph.example_shards(wildcards)),
    output:
        f"{RUN}/{{of}}/masked_lm.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/masked_lm.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.how,
        settings=graph.phase_settings,
        options=graph.masked_lm_options,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm masked-lm --model {params.model:q} {params.expected} --manifest {input.manifest:q} {params.settings}"
        " {params.options} {params.how} --output {output:q} --log {log:q}"


rule evaluate_pseudo_perplexity:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        manifest=graph.manifest,
        shards=lambda wildcards: ancient(graph.example_shards(wildcards)),
    output:
        f"{RUN}/{{of}}/pseudo_perplexity.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/pseudo_perplexity.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.how,
        options=graph.pseudo_perplexity_options,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm pseudo-perplexity --model {params.model:q} {params.expected} --manifest {input.manifest:q} {params.options}"
        " {params.how} --output {output:q} --log {log:q}"


rule evaluate_diacritics:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        manifest=graph.manifest,
        shards=lambda wildcards: ancient(graph.example_shards(wildcards)),
        tokenizer=lambda wildcards: ancient(graph.tokenizer(wildcards)),
    output:
        f"{RUN}/{{of}}/diacritics.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/diacritics.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.how,
        settings=graph.phase_settings,
        options=graph.diacritics_options,
        language=graph.run_language,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm diacritics --model {params.model:q} {params.expected} --manifest {input.manifest:q} --tokenizer {input.tokenizer:q}"
        " {params.settings} {params.options} --language {params.language} {params.how} --output {output:q} --log {log:q}"


rule evaluate_test:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        file_sidecar=STALE.test_sidecar,
        file=lambda wildcards: ancient(graph.test_file(wildcards)),
        tokenizer=lambda wildcards: ancient(graph.tokenizer(wildcards)),
    output:
        f"{RUN}/{{of}}/{{test}}.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/{{test}}.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.how,
        step=graph.test_step,
        protocol=graph.test_protocol,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm {params.step} --test recipes/evaluations/{wildcards.test}.yaml --file {input.file:q}"
        " --model {params.model:q} {params.expected} --tokenizer {input.tokenizer:q} {params.how} --output {output:q} --log {log:q}"


rule evaluate_harness:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        tokenizer=lambda wildcards: ancient(graph.tokenizer(wildcards)),
    output:
        f"{RUN}/{{of}}/lm_eval_{{task}}.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/lm_eval_{{task}}.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.how,
        task=graph.harness_task,
        folder=graph.harness_folder,
        files=graph.harness_task_files,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm harness --task {params.task} {params.folder} --model {params.model:q} {params.expected} --tokenizer {input.tokenizer:q}"
        " {params.how} --output {output:q} --log {log:q}"


rule write_samples:
    input:
        sidecars=STALE.evaluated_sidecars,
        model=lambda wildcards: ancient(graph.evaluated_model(wildcards)),
        tokenizer=lambda wildcards: ancient(graph.tokenizer(wildcards)),
    output:
        f"{RUN}/{{of}}/samples.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/{{of}}/samples.log",
    container:
        IMAGES.of_evaluation
    threads: workflow.cores or 1
    resources:
        accelerator=1,
    params:
        model=graph.evaluated_weights,
        expected=graph.evaluated_sha256,
        how=graph.device_option,
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm samples --model {params.model:q} {params.expected} --tokenizer {input.tokenizer:q}"
        " {params.how} --output {output:q} --log {log:q}"


rule measure_training:
    input:
        sidecar=graph.final_model_sidecar,
        model=lambda wildcards: ancient(graph.final_model(wildcards)),
    output:
        f"{RUN}/eval/training.json",
    log:
        f"{LOGS}/runs/{{recipe}}/{{fingerprint}}/eval/training.log",
    params:
        revision=REVISIONS["evaluation"],
    shell:
        "python -m relm training-speed {wildcards.recipe} --fingerprint {wildcards.fingerprint} --model {input.model:q}"
        " --output {output:q} --log {log:q}"
