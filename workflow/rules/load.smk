# Measured rules ask for more threads than any machine has: capped to --cores, so that nothing runs beside them.
rule load:
    input:
        inputs("load"),
    output:
        **STAGES["load"].files,
    log:
        "logs/load/{key}.log",
    priority: priority_of_load
    conda:
        "../../envs/anncestry.yaml"
    threads: 4096
    params:
        **paths("load"),
        older=lambda w: (
            ["--older", cell(w).older.index_path, cell(w).older.load_path]
            if cell(w).older
            else []
        ),
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
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} load {wildcards.key} '
        "--vectors {params.vectors:q} --artifact {params.artifact:q} {params.older:q} --out {output.record:q}"


rule record:
    input:
        inputs("record"),
    output:
        **STAGES["record"].files,
    log:
        "logs/record/{dataset}/{system}/{topology}@{key}.log",
    priority: priority_of_load
    conda:
        "../../envs/anncestry.yaml"
    params:
        **paths("record"),
    message:
        "Recording the load of {wildcards.dataset} into {wildcards.system}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} record {wildcards.key} '
        "--index {params.index:q} --out {output.record:q}"
