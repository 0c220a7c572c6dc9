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


# A large base is searched shard by shard: on a cluster, each on a machine of its own.
rule truth_part:
    input:
        vectors=lambda w: ancient(cell(w).vectors_path),
    output:
        part=temp("scratch/truth/{dataset}@{key}/part-{part}-of-{parts}.npz"),
    log:
        "logs/truth/{dataset}@{key}.part-{part}-of-{parts}.log",
    wildcard_constraints:
        part=r"\d+",
        parts=r"\d+",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    threads: 4
    message:
        "Computing exact neighbours on {wildcards.dataset}, part {wildcards.part} of {wildcards.parts}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} truth_part {wildcards.key} {wildcards.part}'


rule truth:
    input:
        unpack(
            lambda w: once(
                f"data/truth/{w.dataset}@{w.key}/record.json",
                {
                    "vectors": cell(w).vectors_path,
                    **{
                        f"part_{number}": path
                        for number, path in enumerate(MATRIX.truth_parts(cell(w)), 1)
                    },
                },
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
