rule artifact:
    message:
        "Fetching or building {wildcards.system}"
    output:
        record="scratch/artifact/{system}@{key}/record.json",
    log:
        "logs/artifact/{system}@{key}.log",
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} artifact {wildcards.key}'
