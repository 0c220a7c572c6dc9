rule report:
    message:
        "Drawing the page of {wildcards.experiment}"
    input:
        unpack(lambda w: once(MATRIX.report_path, {"table": MATRIX.table_path})),
    output:
        page="reports/{experiment}@{key}/index.html",
    log:
        "logs/report/{experiment}@{key}.log",
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} report {wildcards.key}'
