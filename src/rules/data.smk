# From the dump to examples: download -> extract -> tokenizer -> pregenerate -> manifest.
# A big file is `ancient()` everywhere; the sidecar beside it stands for its content. A download's folder is named by its content,
# so that an edited sha256 is a missing file, with or without Snakemake's records.


rule download_data:
    output:
        sidecar=f"{WORK}/downloads/data/{{dataset}}/{{key}}/{{shard}}.json",
        file=f"{WORK}/downloads/data/{{dataset}}/{{key}}/{{shard}}",
    log:
        f"{LOGS}/download/data/{{dataset}}/{{key}}/{{shard}}.log",
    params:
        sha256=graph.dataset_file_sha256,
    shell:
        "python -m relm download --dataset recipes/data/{wildcards.dataset}.yaml --file {wildcards.shard}"
        " --sha256 {params.sha256} --output {output.file:q} --log {log:q}"


rule download_model:
    output:
        sidecar=f"{WORK}/downloads/models/{{model}}/{{key}}/{{file}}.json",
        file=f"{WORK}/downloads/models/{{model}}/{{key}}/{{file}}",
    log:
        f"{LOGS}/download/models/{{model}}/{{key}}/{{file}}.log",
    params:
        sha256=graph.model_file_sha256,
    shell:
        "python -m relm download --model recipes/models/{wildcards.model}.yaml --file {wildcards.file}"
        " --sha256 {params.sha256} --output {output.file:q} --log {log:q}"


# A model in a folder of one's own: what is taken of it stays as it was when the folder changes, for its content is in the path.
rule copy_model:
    output:
        sidecar=f"{WORK}/models/{{model}}-{{key}}/{{file}}.json",
        file=f"{WORK}/models/{{model}}-{{key}}/{{file}}",
    log:
        f"{LOGS}/models/{{model}}-{{key}}/{{file}}.log",
    params:
        sha256=graph.model_file_sha256,
    shell:
        "python -m relm download --model recipes/models/{wildcards.model}.yaml --file {wildcards.file}"
        " --sha256 {params.sha256} --output {output.file:q} --log {log:q}"


# Weights that were released as a pickle alone: read as tensors, once.
rule convert_weights:
    input:
        sidecar=f"{WORK}/downloads/models/{{model}}/{{key}}/pytorch_model.bin.json",
        file=ancient(f"{WORK}/downloads/models/{{model}}/{{key}}/pytorch_model.bin"),
    output:
        weights=f"{WORK}/converted/{{model}}-{{key}}/model.safetensors",
        weights_sidecar=f"{WORK}/converted/{{model}}-{{key}}/model.safetensors.json",
        configuration=f"{WORK}/converted/{{model}}-{{key}}/config.json",
        configuration_sidecar=f"{WORK}/converted/{{model}}-{{key}}/config.json.json",
    log:
        f"{LOGS}/converted/{{model}}-{{key}}.log",
    shell:
        "python -m relm convert-weights --model recipes/models/{wildcards.model}.yaml --key {wildcards.key}"
        " --file {input.file:q} --output {output.weights:q} --log {log:q}"


rule extract:
    input:
        sidecar=graph.source_sidecar,
        source=lambda wildcards: ancient(graph.source(wildcards)),
    output:
        train=f"{DOCUMENTS}.train.jsonl",
        train_sidecar=f"{DOCUMENTS}.train.jsonl.json",
        held_out=f"{DOCUMENTS}.held_out.jsonl",
        held_out_sidecar=f"{DOCUMENTS}.held_out.jsonl.json",
    log:
        f"{LOGS}/documents/{{dataset}}-{{key}}/{{shard}}.log",
    threads: workflow.cores or 1
    params:
        source=graph.source_path,
        limit=graph.documents_limit,
    shell:
        "python -m relm extract --dataset recipes/data/{wildcards.dataset}.yaml --key {wildcards.key}"
        " --source {params.source} {params.limit} --workers {threads}"
        " --train {output.train:q} --held-out {output.held_out:q} --log {log:q}"


rule train_tokenizer:
    input:
        sidecars=graph.tokenizer_training_sidecars,
        documents=lambda wildcards: ancient(graph.tokenizer_training_documents(wildcards)),
    output:
        tokenizer=f"{WORK}/tokenizers/trained-{{key}}/tokenizer.json",
        sidecar=f"{WORK}/tokenizers/trained-{{key}}/tokenizer.json.json",
    log:
        f"{LOGS}/tokenizers/{{key}}.log",
    threads: workflow.cores or 1
    params:
        options=graph.tokenizer_training_options,
    shell:
        "python -m relm train-tokenizer {params.options} --documents {input.documents:q}"
        " --output {output.tokenizer:q} --log {log:q}"


rule import_tokenizer:
    input:
        sidecars=graph.imported_tokenizer_sidecars,
        files=lambda wildcards: ancient(graph.imported_tokenizer_files(wildcards)),
    output:
        tokenizer=f"{WORK}/tokenizers/imported-{{key}}/tokenizer.json",
        sidecar=f"{WORK}/tokenizers/imported-{{key}}/tokenizer.json.json",
    log:
        f"{LOGS}/tokenizers/{{key}}.log",
    params:
        kind=graph.imported_tokenizer_kind,
        expected=graph.imported_tokenizer_sha256,
    shell:
        "python -m relm import-tokenizer --kind {params.kind} --files {input.files:q} {params.expected}"
        " --output {output.tokenizer:q} --log {log:q}"


rule pregenerate:
    input:
        sidecars=graph.example_documents_sidecars,
        documents=lambda wildcards: ancient(graph.example_documents(wildcards)),
        tokenizer=lambda wildcards: ancient(graph.example_tokenizer(wildcards)),
    output:
        train=f"{EXAMPLES}.train.bin",
        train_index=f"{EXAMPLES}.train.idx",
        train_sidecar=f"{EXAMPLES}.train.bin.json",
        held_out=f"{EXAMPLES}.held_out.bin",
        held_out_index=f"{EXAMPLES}.held_out.idx",
        held_out_sidecar=f"{EXAMPLES}.held_out.bin.json",
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/{{shard}}.log",
    threads: workflow.cores or 1
    shell:
        "python -m relm pregenerate --tokenizer {input.tokenizer:q} --documents {input.documents:q} --workers {threads}"
        " --output {output.train:q} {output.held_out:q} --log {log:q}"


# Sequences of a fixed length, or pairs of texts: what masked and seq2seq phases read.
rule pregenerate_table:
    input:
        sidecars=graph.example_documents_sidecars,
        documents=lambda wildcards: ancient(graph.example_documents(wildcards)),
        tokenizer=lambda wildcards: ancient(graph.example_tokenizer(wildcards)),
    output:
        train=f"{EXAMPLES}.train.arrow",
        train_sidecar=f"{EXAMPLES}.train.arrow.json",
        held_out=f"{EXAMPLES}.held_out.arrow",
        held_out_sidecar=f"{EXAMPLES}.held_out.arrow.json",
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/{{shard}}.log",
    threads: workflow.cores or 1
    params:
        settings=graph.table_settings,
        language=graph.language,
    shell:
        "python -m relm pregenerate {params.settings} --language {params.language} --tokenizer {input.tokenizer:q}"
        " --documents {input.documents:q} --workers {threads}"
        " --output {output.train:q} {output.held_out:q} --log {log:q}"


rule manifest:
    input:
        graph.shard_sidecars,
    output:
        manifest=f"{WORK}/examples/{{dataset}}-{{key}}/manifest.json",
        croissant=f"{WORK}/examples/{{dataset}}-{{key}}/croissant.json",
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/manifest.log",
    params:
        described=graph.dataset_in_words,
    shell:
        "python -m relm manifest --dataset recipes/data/{wildcards.dataset}.yaml --sidecars {input:q}"
        " --output {output.manifest:q} --log {log:q}"
