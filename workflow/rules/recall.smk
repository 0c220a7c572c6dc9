# Where the query job has scored its answers at once, this moves the record to its place.
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
        scored=lambda w: STAGES["recall"].beside["scored"].format(key=w.key),
    message:
        "Computing recall of {wildcards.workload} on {wildcards.system}, {wildcards.dataset}, {wildcards.topology}"
    shell:
        "mv {params.scored:q} {output.record:q} 2>/dev/null || "
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} recall {wildcards.key} '
        "--query {params.query:q} --truth {params.truth:q} --vectors {params.vectors:q} --out {output.record:q}"
