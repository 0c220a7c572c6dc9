# A target of its own, with nothing to make: `snakemake --cores 8 verify` measures what is missing, then recomputes all.
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
