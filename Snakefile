"""anncestry: dataset × system × topology × workload, each cell measured once.

snakemake --cores 8 all                               the default matrix (config/config.yaml)
snakemake --cores 8 all --config experiment=smoke     an experiment (config/experiments/smoke.yaml)
"""


include: "workflow/Snakefile"


# An included file can't choose the default target.
workflow.default_target = "all"
