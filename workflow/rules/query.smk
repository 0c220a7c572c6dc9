# A session is a round: one server, which measures run r of all cells of a load that lack it. Priorities put round r of
# all loads before round r + 1 of any, and loads before rounds: runs of all systems are interleaved.
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
    priority: lambda w: ROUNDS_FROM - PLAN.sessions[w.key].place
    conda:
        "../../envs/anncestry.yaml"
    threads: 4096
    params:
        what=lambda w: PLAN.sessions[w.key].name,
        round=lambda w: PLAN.sessions[w.key].round,
        cells=lambda w: [c.query for c in PLAN.sessions[w.key].cells],
    message:
        "Measuring {params.what}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} session {wildcards.key} {params.round} {params.cells}'


rule query:
    input:
        unpack(
            lambda w: once(
                [cell(w).query_path, cell(w).samples_path],
                {
                    f"run_{session.round}": session.path
                    for session in PLAN.sessions_of.get(w.key, ())
                },
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
        sessions=lambda w: [s.path for s in PLAN.sessions_of.get(w.key, ())],
    message:
        "Keeping {wildcards.workload} on {wildcards.system}, {wildcards.dataset}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} query {wildcards.key} {params.sessions:q}'
