rule report:
    input:
        inputs("report"),
    output:
        page=report(
            STAGES["report"].output,
            category="Pages",
            labels={"experiment": "{experiment}"},
        ),
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
