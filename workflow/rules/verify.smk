# A target of its own, with nothing to make: `snakemake verify` completes what is missing, then recomputes all of it.
rule verify:
    input:
        rules.all.input,
    log:
        f"logs/verify/{CHOICE.experiment}.log",
    conda:
        "../../envs/anncestry.yaml"
    message:
        "Verifying every published number"
    shell:
        '"$ANNCESTRY_PYTHON" -m anncestry --log {log:q} verify'
