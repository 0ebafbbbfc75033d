# From the dump to examples: download -> extract -> tokenizer -> pregenerate -> manifest.
# Inputs and commands are those of `plan/data_jobs.py`. A large file is always `ancient()`; its sidecar has the hash. A
# download's folder is named after its sha256, so that an edited sha256 causes a new download, with or without Snakemake's records.


rule download_data:
    output:
        sidecar=graph.sidecar("download"),
        file=SOURCES.deleted_after_use(graph.path("download")),
        record=graph.record("download"),
    log:
        f"{LOGS}/download/data/{{dataset}}/{{key}}/{{shard}}.log",
    priority: SOURCES.priority_of_download if SOURCES.limit else 0
    threads: SOURCES.threads if SOURCES.limit else 1
    resources:
        shards=1,
        mem_mb=graph.workers_memory if SOURCES.limit else graph.SMALL_MEMORY_MB,
        disk_mb=graph.download_disk,
        runtime=graph.RUNTIME,
    params:
        refusal=SOURCES.stop_downloads if SOURCES.limit else "",
        command=graph.command("download_data"),
    shell:
        "{params.refusal}{params.command} --log {log:q}"


rule download_model:
    output:
        sidecar=graph.sidecar("model download"),
        file=graph.path("model download"),
        record=graph.record("model download"),
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
        sidecar=graph.sidecar("model copy"),
        file=graph.path("model copy"),
        record=graph.record("model copy"),
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
        weights=graph.path("converted", file=WEIGHTS),
        weights_sidecar=graph.sidecar("converted", file=WEIGHTS),
        configuration=graph.path("converted", file="config.json"),
        configuration_sidecar=graph.sidecar("converted", file="config.json"),
        record=graph.record("converted", file=WEIGHTS),
    log:
        f"{LOGS}/converted/{{model}}-{{key}}.log",
    params:
        command=graph.command("convert_weights"),
    shell:
        "{params.command} --log {log:q}"


rule extract:
    input:
        unpack(SOURCES.inputs("extract")),
    output:
        train=SOURCES.deleted_after_use(graph.path("documents", split="train")),
        train_sidecar=graph.sidecar("documents", split="train"),
        held_out=SOURCES.deleted_after_use(graph.path("documents", split="held_out")),
        held_out_sidecar=graph.sidecar("documents", split="held_out"),
        record=graph.record("documents", split="train"),
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
        removed=graph.path("removed"),
        sidecar=graph.sidecar("removed"),
        record=graph.record("removed"),
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
        documents=SOURCES.deleted_after_use(graph.path("kept")),
        sidecar=graph.sidecar("kept"),
        record=graph.record("kept"),
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
        tokenizer=graph.path("tokenizer", origin="trained"),
        sidecar=graph.sidecar("tokenizer", origin="trained"),
        record=graph.record("tokenizer", origin="trained"),
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
        tokenizer=graph.path("tokenizer", origin="imported"),
        sidecar=graph.sidecar("tokenizer", origin="imported"),
        record=graph.record("tokenizer", origin="imported"),
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
        train=graph.path("examples", split="train", suffix="bin"),
        train_index=graph.path("examples", split="train", suffix="idx"),
        train_sidecar=graph.sidecar("examples", split="train", suffix="bin"),
        held_out=graph.path("examples", split="held_out", suffix="bin"),
        held_out_index=graph.path("examples", split="held_out", suffix="idx"),
        held_out_sidecar=graph.sidecar("examples", split="held_out", suffix="bin"),
        record=graph.record("examples", split="train", suffix="bin"),
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
        train=graph.path("examples", split="train", suffix="arrow"),
        train_sidecar=graph.sidecar("examples", split="train", suffix="arrow"),
        held_out=graph.path("examples", split="held_out", suffix="arrow"),
        held_out_sidecar=graph.sidecar("examples", split="held_out", suffix="arrow"),
        record=graph.record("examples", split="train", suffix="arrow"),


# Tokens that somebody else has published: they are checked and copied, without extraction and tokenisation.
rule import_tokens:
    input:
        unpack(SOURCES.inputs("import_tokens")),
    output:
        tokens=graph.path("imported", suffix="bin"),
        index=graph.path("imported", suffix="idx"),
        sidecar=graph.sidecar("imported", suffix="bin"),
        record=graph.record("imported", suffix="bin"),
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
        manifest=graph.path("manifest"),
        record=graph.record("manifest"),
    log:
        f"{LOGS}/examples/{{dataset}}-{{key}}/manifest.log",
    params:
        command=graph.command("manifest"),
    shell:
        "{params.command} --log {log:q}"
