# From the dump to examples: download -> extract -> tokenizer -> pregenerate -> manifest.
# Inputs and commands are those of `plan/data_jobs.py`. A large file is always `ancient()`; the sidecar beside it has its hash. A
# download's folder is named after its sha256, so that an edited sha256 causes a new download, with or without Snakemake's records.


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
        command=graph.command("download_data"),
    shell:
        "{params.refusal}{params.command} --log {log:q}"


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
        command=graph.command("download_model"),
    shell:
        "{params.command} --log {log:q}"


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
        command=graph.command("copy_model"),
    shell:
        "{params.command} --log {log:q}"


# Weights that were released as a pickle only; they are read once, restricted to tensors.
rule convert_weights:
    input:
        unpack(graph.inputs("convert_weights")),
    output:
        weights=f"{WORK}/converted/{{model}}-{{key}}/model.safetensors",
        weights_sidecar=f"{WORK}/converted/{{model}}-{{key}}/model.safetensors.json",
        configuration=f"{WORK}/converted/{{model}}-{{key}}/config.json",
        configuration_sidecar=f"{WORK}/converted/{{model}}-{{key}}/config.json.json",
    log:
        f"{LOGS}/converted/{{model}}-{{key}}.log",
    params:
        command=graph.command("convert_weights"),
    shell:
        "{params.command} --log {log:q}"


# Only of datasets with `ranges`: the documents of each range of a file, which `extract` joins.
rule extract_range:
    input:
        unpack(SOURCES.inputs("extract_range")),
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
        command=graph.command("extract_range"),
    shell:
        "{params.command} --log {log:q}"


rule extract:
    input:
        unpack(SOURCES.inputs("extract")),
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
        command=graph.command("extract"),
    shell:
        "{params.command} --log {log:q}"


# Only of recipes with `data: {remove: ...}`: which documents of all shards are removed, and then each shard without them.
rule list_removed:
    input:
        unpack(SOURCES.inputs("list_removed")),
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
        command=graph.command("list_removed"),
    shell:
        "{params.command} --log {log:q}"


rule remove_listed:
    input:
        unpack(SOURCES.inputs("remove_listed")),
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
    params:
        command=graph.command("remove_listed"),
    shell:
        "{params.command} --log {log:q}"


rule train_tokenizer:
    input:
        unpack(SOURCES.inputs("tokenizer")),
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
        command=graph.command("tokenizer"),
    shell:
        "{params.command} --log {log:q}"


rule import_tokenizer:
    input:
        unpack(graph.inputs("tokenizer")),
    output:
        tokenizer=f"{WORK}/tokenizers/imported-{{key}}/tokenizer.json",
        sidecar=f"{WORK}/tokenizers/imported-{{key}}/tokenizer.json.json",
    log:
        f"{LOGS}/tokenizers/{{key}}.log",
    priority: SOURCES.first_priority
    resources:
        shards=SOURCES.all_slots,
    params:
        command=graph.command("tokenizer"),
    shell:
        "{params.command} --log {log:q}"


rule pregenerate:
    input:
        unpack(SOURCES.inputs("pregenerate")),
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
        command=graph.command("pregenerate"),
    shell:
        "{params.command} --log {log:q}"


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
        unpack(SOURCES.inputs("import_tokens")),
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
        command=graph.command("import_tokens"),
    shell:
        "{params.command} --log {log:q}"


rule manifest:
    input:
        unpack(graph.inputs("manifest")),
    output:
        manifest=f"{WORK}/examples/{{dataset}}-{{key}}/manifest.json",
        croissant=f"{WORK}/examples/{{dataset}}-{{key}}/croissant.json",
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/manifest.log",
    params:
        command=graph.command("manifest"),
    shell:
        "{params.command} --log {log:q}"
