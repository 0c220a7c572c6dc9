rule artifact:
    output:
        record="scratch/artifact/{system}@{key}/record.json",
    log:
        "logs/artifact/{system}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    priority: PREPARE
    message:
        "Fetching or building {wildcards.system}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} artifact {wildcards.key}'
