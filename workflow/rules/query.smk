# A session is a round: one server, which measures run r of all cells of a load that lack it. Priorities put round r of
# all loads before round r + 1 of any, and loads before rounds: runs of all systems are interleaved.
rule session:
    input:
        inputs("session"),
    output:
        session=temp(STAGES["session"].output),
    log:
        "logs/session/{key}.log",
    priority: priority_of_session
    conda:
        "../../envs/anncestry.yaml"
    threads: 4096
    params:
        **paths("session"),
        what=lambda w: PLAN.sessions[w.key].name,
        round=lambda w: PLAN.sessions[w.key].round,
        cells=lambda w: [c.query for c in PLAN.sessions[w.key].cells],
        shown=lambda w: int(w.key in PLAN.shown_after),
    message:
        "Measuring {params.what}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} session {wildcards.key} {params.round} {params.cells} '
        "--index {params.index:q} --load {params.load:q} --vectors {params.vectors:q} "
        "--artifact {params.artifact:q} --out {output.session:q}\n"
        'if [ "${{ANNCESTRY_PREVIEW:-0}}{params.shown}" = 11 ]; then '
        '"$ANNCESTRY_PYTHON" -m anncestry preview >> {log:q} 2>&1 || true; fi'


# After all first rounds: further ones of the cells whose numbers vary, one server at a time, until none needs another.
rule rounds:
    input:
        inputs("rounds"),
    output:
        rounds=temp(STAGES["rounds"].output),
    log:
        "logs/rounds/{key}.log",
    priority: ROUNDS_FROM - 900_000
    conda:
        "../../envs/anncestry.yaml"
    threads: 4096
    params:
        cells=lambda w: [c.query for c in PLAN.undecided],
    message:
        "Measuring further rounds where intervals are wide"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} rounds {wildcards.key} {params.cells} --out {output.rounds:q}'


rule query:
    input:
        inputs("query"),
    output:
        **STAGES["query"].files,
    log:
        "logs/query/{dataset}/{system}/{topology}/{workload}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    params:
        sessions=lambda w: [s.path for s in PLAN.sessions_of.get(w.key, ())],
    message:
        "Publishing {wildcards.workload} on {wildcards.system}, {wildcards.dataset}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} query {wildcards.key} {params.sessions:q} '
        "--out {output.record:q}"
