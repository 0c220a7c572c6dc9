rule table:
    input:
        inputs("table"),
    output:
        **STAGES["table"].files,
    log:
        "logs/table/{experiment}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Writing the table of {wildcards.experiment}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} table {wildcards.key} --out {output.csv:q}'
