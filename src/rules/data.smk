# From the dump to examples: download -> extract -> tokenizer -> pregenerate -> manifest.
# A large file is always `ancient()`; the sidecar beside it has its hash. A download's folder is named after its sha256, so that
# an edited sha256 causes a new download, with or without Snakemake's records. The command of a job gets its identity as --job:
# the document whose digest is the key in its path.


rule download_data:
    output:
        sidecar=f"{WORK}/downloads/data/{{dataset}}/{{key}}/{{shard}}.json",
        file=SOURCES.deleted_after_use(f"{WORK}/downloads/data/{{dataset}}/{{key}}/{{shard}}"),
    log:
        f"{LOGS}/download/data/{{dataset}}/{{key}}/{{shard}}.log",
    priority: SOURCES.priority_of_download
    threads: SOURCES.threads if SOURCES.limit else 1
    resources:
        shards=1,
        mem_mb=graph.workers_memory if SOURCES.limit else graph.SMALL_MEMORY_MB,
        disk_mb=graph.download_disk,
        runtime=graph.RUNTIME,
    params:
        refusal=SOURCES.refuse_more,
        sha256=graph.download_sha256,
    shell:
        "{params.refusal}python -m relm download --dataset recipes/data/{wildcards.dataset}.yaml --file {wildcards.shard}"
        " --sha256 {params.sha256} --output {output.file:q} --log {log:q}"


rule download_model:
    output:
        sidecar=f"{WORK}/downloads/models/{{model}}/{{key}}/{{file}}.json",
        file=f"{WORK}/downloads/models/{{model}}/{{key}}/{{file}}",
    log:
        f"{LOGS}/download/models/{{model}}/{{key}}/{{file}}.log",
    priority: SOURCES.first_priority
    resources:
        shards=SOURCES.all_slots,
        mem_mb=graph.SMALL_MEMORY_MB,
        disk_mb=graph.download_disk,
        runtime=graph.RUNTIME,
    params:
        sha256=graph.download_sha256,
    shell:
        "python -m relm download --model recipes/models/{wildcards.model}.yaml --file {wildcards.file}"
        " --sha256 {params.sha256} --output {output.file:q} --log {log:q}"


# A model in a local folder: copied files stay unchanged when the folder changes, because the key of the content is in the path.
rule copy_model:
    output:
        sidecar=f"{WORK}/models/{{model}}-{{key}}/{{file}}.json",
        file=f"{WORK}/models/{{model}}-{{key}}/{{file}}",
    log:
        f"{LOGS}/models/{{model}}-{{key}}/{{file}}.log",
    priority: SOURCES.first_priority
    resources:
        shards=SOURCES.all_slots,
    params:
        sha256=graph.download_sha256,
    shell:
        "python -m relm download --model recipes/models/{wildcards.model}.yaml --file {wildcards.file}"
        " --sha256 {params.sha256} --output {output.file:q} --log {log:q}"


# Weights that were released as a pickle only; they are read once, restricted to tensors.
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


# Only of datasets with `ranges`: the documents of each range of a file, which `extract` joins.
rule extract_range:
    input:
        unpack(SOURCES.unless_used_up(graph.range_source, graph.range_outputs)),
    output:
        train=SOURCES.deleted_after_use(f"{RANGES}.train.jsonl"),
        train_sidecar=f"{RANGES}.train.jsonl.json",
        held_out=SOURCES.deleted_after_use(f"{RANGES}.held_out.jsonl"),
        held_out_sidecar=f"{RANGES}.held_out.jsonl.json",
    log:
        f"{LOGS}/documents/{{dataset}}-{{key}}/{{shard}}.{{part}}.log",
    priority: SOURCES.priority
    threads: SOURCES.threads
    resources:
        shards=1,
        mem_mb=graph.workers_memory,
        disk_mb=graph.documents_disk,
        runtime=graph.documents_runtime,
    params:
        job=graph.data_job("documents"),
    shell:
        "python -m relm extract {params.job} --range {wildcards.part} --workers {threads}"
        " --train {output.train:q} --held-out {output.held_out:q} --log {log:q}"


rule extract:
    input:
        unpack(SOURCES.unless_used_up(graph.data_inputs("documents"), graph.data_outputs("documents"))),
    output:
        train=SOURCES.deleted_after_use(f"{DOCUMENTS}.train.jsonl"),
        train_sidecar=f"{DOCUMENTS}.train.jsonl.json",
        held_out=SOURCES.deleted_after_use(f"{DOCUMENTS}.held_out.jsonl"),
        held_out_sidecar=f"{DOCUMENTS}.held_out.jsonl.json",
    log:
        f"{LOGS}/documents/{{dataset}}-{{key}}/{{shard}}.log",
    priority: SOURCES.priority
    threads: SOURCES.threads
    resources:
        shards=1,
        mem_mb=graph.workers_memory,
        disk_mb=graph.documents_disk,
        runtime=graph.documents_runtime,
    params:
        command=graph.documents_command,
    shell:
        "python -m relm {params.command} --train {output.train:q} --held-out {output.held_out:q} --log {log:q}"


# Only of recipes with `data: {remove: ...}`: which documents of all shards are removed, and then each shard without them.
rule list_removed:
    input:
        unpack(SOURCES.unless_used_up(graph.list_inputs, graph.list_outputs)),
    output:
        removed=f"{KEPT}/removed.jsonl",
        sidecar=f"{KEPT}/removed.jsonl.json",
    log:
        f"{LOGS}/kept/{{dataset}}-{{key}}/removed.log",
    threads: workflow.cores or 1
    resources:
        mem_mb=graph.workers_memory,
        disk_mb=graph.DISK_MB,
        runtime=graph.RUNTIME,
    params:
        options=graph.data_job("kept"),
    shell:
        "python -m relm list-removed {params.options} --documents {input.documents:q} --workers {threads}"
        " --output {output.removed:q} --log {log:q}"


rule remove_listed:
    input:
        unpack(SOURCES.unless_used_up(graph.kept_inputs, graph.data_outputs("kept"))),
    output:
        documents=SOURCES.deleted_after_use(f"{KEPT}/{{shard}}.{{split}}.jsonl"),
        sidecar=f"{KEPT}/{{shard}}.{{split}}.jsonl.json",
    log:
        f"{LOGS}/kept/{{dataset}}-{{key}}/{{shard}}.{{split}}.log",
    priority: SOURCES.priority
    threads: SOURCES.threads
    resources:
        shards=1,
        mem_mb=graph.workers_memory,
        disk_mb=graph.documents_disk,
        runtime=graph.documents_runtime,
    shell:
        "python -m relm remove-listed --documents {input.documents:q} --removed {input.removed:q} --workers {threads}"
        " --output {output.documents:q} --log {log:q}"


rule train_tokenizer:
    input:
        unpack(SOURCES.unless_used_up(graph.data_inputs("tokenizer"), graph.data_outputs("tokenizer"))),
    output:
        tokenizer=f"{WORK}/tokenizers/trained-{{key}}/tokenizer.json",
        sidecar=f"{WORK}/tokenizers/trained-{{key}}/tokenizer.json.json",
    log:
        f"{LOGS}/tokenizers/{{key}}.log",
    threads: workflow.cores or 1
    resources:
        mem_mb=graph.MEMORY_MB,
        disk_mb=graph.DISK_MB,
        runtime=graph.RUNTIME,
    params:
        job=graph.data_job("tokenizer"),
    shell:
        "python -m relm train-tokenizer {params.job} --documents {input.files:q}" " --output {output.tokenizer:q} --log {log:q}"


rule import_tokenizer:
    input:
        unpack(graph.data_inputs("tokenizer")),
    output:
        tokenizer=f"{WORK}/tokenizers/imported-{{key}}/tokenizer.json",
        sidecar=f"{WORK}/tokenizers/imported-{{key}}/tokenizer.json.json",
    log:
        f"{LOGS}/tokenizers/{{key}}.log",
    priority: SOURCES.first_priority
    resources:
        shards=SOURCES.all_slots,
    params:
        job=graph.data_job("tokenizer"),
    shell:
        "python -m relm import-tokenizer {params.job} --files {input.files:q}" " --output {output.tokenizer:q} --log {log:q}"


rule pregenerate:
    input:
        unpack(SOURCES.unless_used_up(graph.data_inputs("examples"), graph.data_outputs("examples"))),
    output:
        train=f"{EXAMPLES}.train.bin",
        train_index=f"{EXAMPLES}.train.idx",
        train_sidecar=f"{EXAMPLES}.train.bin.json",
        held_out=f"{EXAMPLES}.held_out.bin",
        held_out_index=f"{EXAMPLES}.held_out.idx",
        held_out_sidecar=f"{EXAMPLES}.held_out.bin.json",
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/{{shard}}.log",
    priority: SOURCES.priority
    threads: SOURCES.threads
    resources:
        shards=1,
        mem_mb=graph.workers_memory,
        disk_mb=graph.examples_disk,
        runtime=graph.examples_runtime,
    params:
        job=graph.data_job("examples"),
    shell:
        "python -m relm pregenerate {params.job} --tokenizer {input.tokenizer:q} --documents {input.documents:q}"
        " --workers {threads} --output {output.train:q} {output.held_out:q} --log {log:q}"


# Sequences of a fixed length, or pairs of texts, for masked and seq2seq phases.
use rule pregenerate as pregenerate_table with:
    output:
        train=f"{EXAMPLES}.train.arrow",
        train_sidecar=f"{EXAMPLES}.train.arrow.json",
        held_out=f"{EXAMPLES}.held_out.arrow",
        held_out_sidecar=f"{EXAMPLES}.held_out.arrow.json",


# Tokens that somebody else has published: they are checked and copied, without extraction and tokenisation.
rule import_tokens:
    input:
        unpack(SOURCES.unless_used_up(graph.data_inputs("examples"), graph.data_outputs("examples"))),
    output:
        tokens=f"{IMPORTED}/{{shard}}.{{split}}.bin",
        index=f"{IMPORTED}/{{shard}}.{{split}}.idx",
        sidecar=f"{IMPORTED}/{{shard}}.{{split}}.bin.json",
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/{{shard}}.{{split}}.log",
    priority: SOURCES.priority
    resources:
        shards=1,
        mem_mb=graph.SMALL_MEMORY_MB,
        disk_mb=graph.import_disk,
        runtime=graph.START,
    params:
        options=graph.data_job("examples"),
    shell:
        "python -m relm import {params.options} --tokenizer {input.tokenizer:q} --files {input.files:q}"
        " --output {output.tokens:q} --log {log:q}"


rule manifest:
    input:
        graph.shard_sidecars,
    output:
        manifest=f"{WORK}/examples/{{dataset}}-{{key}}/manifest.json",
        croissant=f"{WORK}/examples/{{dataset}}-{{key}}/croissant.json",
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/manifest.log",
    shell:
        "python -m relm manifest --dataset recipes/data/{wildcards.dataset}.yaml --sidecars {input:q}"
        " --output {output.manifest:q} --log {log:q}"
