rule artifact:
    output:
        **STAGES["artifact"].files,
    log:
        "logs/artifact/{system}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Fetching or building {wildcards.system}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} artifact {wildcards.key} --out {output.record:q}'
