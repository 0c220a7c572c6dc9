"""anncestry: dataset × system × topology × workload, each cell measured once.

snakemake --cores 8 all                               the default matrix (config/config.yaml)
snakemake --cores 8 all --config experiment=smoke     an experiment (config/experiments/smoke.yaml)
"""

from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/artifacts.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/load.smk"
include: "workflow/rules/query.smk"
include: "workflow/rules/recall.smk"
include: "workflow/rules/pair.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/report.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        sorted({cell.load_path for cell in MATRIX.loaded}),
        [cell.query_path for cell in MATRIX.cells],
        [cell.recall_path for cell in MATRIX.cells],
        [pair.path for pair in MATRIX.pairs],
        MATRIX.table_path,
        MATRIX.report_path,
    message:
        "Everything is up to date"


include: "workflow/rules/verify.smk"


onsuccess:
    print_summary()
