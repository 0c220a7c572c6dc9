rule recall:
    input:
        inputs("recall"),
    output:
        **STAGES["recall"].files,
    log:
        "logs/recall/{dataset}/{system}/{topology}/{workload}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    params:
        **paths("recall"),
    message:
        "Computing recall of {wildcards.workload} on {wildcards.system}, {wildcards.dataset}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} recall {wildcards.key} '
        "--query {params.query:q} --truth {params.truth:q} --vectors {params.vectors:q} --out {output.record:q}"
