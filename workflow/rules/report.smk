rule report:
    input:
        unpack(lambda w: once(MATRIX.report_path, {"table": MATRIX.table_path})),
    output:
        page="results/report/{experiment}@{key}/index.html",
    log:
        "logs/report/{experiment}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Drawing the page of {wildcards.experiment}"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} report {wildcards.key}'
