rule session:
    input:
        unpack(
            lambda w: once(
                PLAN.sessions[w.key].path,
                {
                    "index": PLAN.sessions[w.key].cells[0].index_path,
                    "load": PLAN.sessions[w.key].cells[0].load_path,
                    "vectors": PLAN.sessions[w.key].cells[0].vectors_path,
                    "artifact": PLAN.sessions[w.key].cells[0].artifact_path,
                },
            )
        ),
    output:
        session=temp("scratch/session/{key}/session.json"),
    log:
        "logs/session/{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    threads: 4096
    params:
        what=lambda w: PLAN.sessions[w.key].name,
        cells=lambda w: [c.query for c in PLAN.sessions[w.key].cells],
    message:
        "Measuring {params.what}: one server, runs interleaved"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} session {wildcards.key} {params.cells}'


rule query:
    input:
        unpack(
            lambda w: once(
                [cell(w).query_path, cell(w).samples_path],
                (
                    {"session": PLAN.session_of[w.key].path}
                    if w.key in PLAN.session_of
                    else {}
                ),
            )
        ),
    output:
        record="results/query/{dataset}/{system}/{topology}/{workload}@{key}.json",
        samples="results/query/{dataset}/{system}/{topology}/{workload}@{key}.samples.parquet",
        resources="results/query/{dataset}/{system}/{topology}/{workload}@{key}.resources.parquet",
    log:
        "logs/query/{dataset}/{system}/{topology}/{workload}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    params:
        session=lambda w, input: input.get("session", ""),
    message:
        "Keeping {wildcards.workload} on {wildcards.system}, {wildcards.dataset}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} query {wildcards.key} {params.session:q}'
