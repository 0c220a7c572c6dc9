rule download:
    output:
        **STAGES["download"].files,
    log:
        "logs/download/{dataset}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Downloading dataset {wildcards.dataset}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} download {wildcards.key} --out {output.record:q}'


rule normalize:
    input:
        inputs("normalize"),
    output:
        **STAGES["normalize"].files,
    log:
        "logs/normalize/{dataset}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    params:
        **paths("normalize"),
    message:
        "Normalising dataset {wildcards.dataset}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} normalize {wildcards.key} '
        "--download {params.download:q} --out {output.record:q}"


# A large base is searched shard by shard: on a cluster, each on a machine of its own.
rule truth_part:
    input:
        inputs("truth_part"),
    output:
        part=temp(STAGES["truth_part"].output),
    log:
        "logs/truth/{dataset}@{key}.part-{part}-of-{parts}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    threads: 4
    params:
        **paths("truth_part"),
    message:
        "Computing exact neighbours on {wildcards.dataset}, part {wildcards.part} of {wildcards.parts}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} truth_part {wildcards.key} {wildcards.part} '
        "--vectors {params.vectors:q} --out {output.part:q}"


rule truth:
    input:
        inputs("truth"),
    output:
        **STAGES["truth"].files,
    log:
        "logs/truth/{dataset}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    threads: 4
    params:
        **paths("truth"),
        parts=lambda w: MATRIX.truth_parts(cell(w)),
    message:
        "Computing exact neighbours on {wildcards.dataset}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} truth {wildcards.key} '
        "--vectors {params.vectors:q} --parts {params.parts:q} --out {output.record:q}"
