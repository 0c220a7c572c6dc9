rule recall:
    input:
        unpack(
            lambda w: once(
                cell(w).recall_path,
                {
                    "query": cell(w).query_path,
                    "samples": cell(w).samples_path,
                    "truth": cell(w).truth_path,
                    "vectors": cell(w).vectors_path,
                },
            )
        ),
    output:
        record="results/recall/{dataset}/{system}/{topology}/{workload}@{key}.json",
    log:
        "logs/recall/{dataset}/{system}/{topology}/{workload}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Recall of {wildcards.workload} on {wildcards.system}, {wildcards.dataset}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} recall {wildcards.key}'
