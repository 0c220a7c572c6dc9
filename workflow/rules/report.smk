rule report:
    input:
        inputs("report"),
    output:
        **STAGES["report"].files,
    log:
        "logs/report/{experiment}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    params:
        table=MATRIX.table_path,
    message:
        "Drawing the page of {wildcards.experiment}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} report {wildcards.key} '
        "--table {params.table:q} --out {output.page:q}"
