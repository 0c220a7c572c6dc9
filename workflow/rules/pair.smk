# Pairs: two servers at once, one of them frozen at a time. Each job of the first rule has a fresh pair of servers; their
# rounds are interleaved with those of single servers.
rule duet:
    input:
        inputs("duet"),
    output:
        session=temp(STAGES["duet"].output),
    log:
        "logs/duet/{key}.log",
    priority: lambda w: ROUNDS_FROM - PLAN.sessions[w.key].place
    conda:
        "../../envs/anncestry.yaml"
    threads: 4096
    params:
        what=lambda w: PLAN.sessions[w.key].name,
        round=lambda w: PLAN.sessions[w.key].round,
        pairs=lambda w: [pair.pair for pair in PLAN.sessions[w.key].cells],
    message:
        "Measuring {params.what}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} duet {wildcards.key} {params.round} {params.pairs} '
        "--out {output.session:q}"


rule pair:
    input:
        inputs("pair"),
    output:
        **STAGES["pair"].files,
    log:
        "logs/pair/{dataset}/{system}/{topology}/{workload}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    params:
        **paths("pair"),
        sessions=lambda w: [s.path for s in PLAN.sessions_of.get(w.key, ())],
    message:
        "Publishing {wildcards.workload} of the pair {wildcards.system} on {wildcards.dataset}, {wildcards.topology}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} pair {wildcards.key} {params.sessions:q} '
        "--truth {params.truth:q} --vectors {params.vectors:q} --out {output.record:q}"
