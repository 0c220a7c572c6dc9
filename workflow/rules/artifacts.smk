rule artifact:
    output:
        record="scratch/artifact/{system}@{key}/record.json",
    log:
        "logs/artifact/{system}@{key}.log",
    priority: PREPARE
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Fetching or building {wildcards.system}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} artifact {wildcards.key}'
