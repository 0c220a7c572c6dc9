rule table:
    input:
        unpack(
            lambda w: once(
                MATRIX.table_path,
                {
                    f"{stage}_{number}": path
                    for number, c in enumerate(MATRIX.cells)
                    for stage, path in [
                        ("load", c.load_path),
                        ("query", c.query_path),
                        ("recall", c.recall_path),
                    ]
                },
            )
        ),
    output:
        csv="results/table/{experiment}@{key}/numbers.csv",
        json="results/table/{experiment}@{key}/numbers.json",
        parquet="results/table/{experiment}@{key}/numbers.parquet",
    log:
        "logs/table/{experiment}@{key}.log",
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Gathering all numbers of {wildcards.experiment} into one tidy table"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} table {wildcards.key}'
