# Measured rules ask for more threads than any machine has: capped to --cores, so that nothing runs beside them.
rule load:
    input:
        unpack(
            lambda w: once(
                cell(w).index_path,
                {
                    "vectors": cell(w).vectors_path,
                    "artifact": cell(w).artifact_path,
                    **(
                        {
                            "older": cell(w).older.index_path,
                            "older_record": cell(w).older.load_path,
                        }
                        if cell(w).older
                        else {}
                    ),
                },
            )
        ),
    output:
        record="scratch/index/{key}/record.json",
    log:
        "logs/load/{key}.log",
    priority: LOADS
    conda:
        "../../envs/anncestry.yaml"
    threads: 4096
    params:
        what=lambda w: (
            f"Opening {cell(w).dataset} of {cell(w).older.system} in place: "
            f"{cell(w).system}, {cell(w).topology}"
            if cell(w).older
            else f"Loading {cell(w).dataset} into {cell(w).system}, {cell(w).topology}: "
            "insert, flush, index, ready"
        ),
    message:
        "{params.what}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} load {wildcards.key}'


rule record:
    input:
        unpack(lambda w: once(cell(w).load_path, {"index": cell(w).index_path})),
    output:
        record="results/load/{dataset}/{system}/{topology}@{key}.json",
        resources="results/load/{dataset}/{system}/{topology}@{key}.resources.parquet",
    log:
        "logs/record/{dataset}/{system}/{topology}@{key}.log",
    priority: LOADS
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Recording the load of {wildcards.dataset} into {wildcards.system}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} record {wildcards.key}'
