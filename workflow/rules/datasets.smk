rule download:
    output:
        record="data/download/{dataset}@{key}/record.json",
    log:
        "logs/download/{dataset}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Getting dataset {wildcards.dataset}, verified by content"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} download {wildcards.key}'


rule normalize:
    input:
        unpack(
            lambda w: once(cell(w).vectors_path, {"download": cell(w).download_path})
        ),
    output:
        record="data/vectors/{dataset}@{key}/record.json",
    log:
        "logs/normalize/{dataset}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Normalising dataset {wildcards.dataset}, with its metadata"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} normalize {wildcards.key}'


rule truth:
    input:
        unpack(
            lambda w: once(
                f"data/truth/{w.dataset}@{w.key}/record.json",
                {"vectors": cell(w).vectors_path},
            )
        ),
    output:
        record="data/truth/{dataset}@{key}/record.json",
    log:
        "logs/truth/{dataset}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    threads: 4
    message:
        "Computing exact neighbours on {wildcards.dataset}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} truth {wildcards.key}'
