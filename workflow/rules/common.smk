# The matrix, and the few closures that keep the rules declarative.
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
# In a checkout, its own package; what a wheel installed is found without this.
SOURCES = (
    Path(workflow.current_basedir.get_path_or_uri(secret_free=False)).parents[1] / "src"
)
if SOURCES.is_dir() and str(SOURCES) not in sys.path:
    sys.path.insert(0, str(SOURCES))

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod

from anncestry import workflow as anncestry_workflow
from anncestry.cells.stage import STAGES, WILDCARDS
from anncestry.errors import UserError, sentence_of

try:
    CHOICE = anncestry_workflow.choose(config, ROOT)
    RUNS_JOBS = workflow.is_main_process and anncestry_workflow.begin(
        sys.argv, Path.cwd()
    )
    MATRIX, PLAN = anncestry_workflow.resolve(
        CHOICE, Path.cwd(), mend=workflow.is_main_process
    )
except (UserError, OSError) as error:
    raise WorkflowError(sentence_of(error)) from None

# Every job calls the package by the interpreter that runs Snakemake (or by that of its conda environment, where one
# deploys those), and is told which matrix is meant. Each parse does this: on a cluster, each job's own.
DEPLOYS_CONDA = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
CHOICE.export("python" if DEPLOYS_CONDA else sys.executable)


# What runs first where several jobs could: data and artifacts, then loads, then sessions, round by round; the rest, which
# disturbs no measurement, when nothing of these can run. Loads and the first round of the first part, which a page shows
# soon, come before other loads.
PREPARE, LOADS, ROUNDS_FROM = 3_000_000, 2_000_000, 1_000_000
FIRST_LOADS, FIRST_ROUND_FROM = 2_900_000, 2_800_000


def priority_of_load(wildcards):
    return FIRST_LOADS if PLAN.is_first(MATRIX.cell(wildcards.key)) else LOADS


def priority_of_session(wildcards):
    session = PLAN.sessions[wildcards.key]
    begin = FIRST_ROUND_FROM if PLAN.is_first(session) else ROUNDS_FROM
    return begin - session.place


wildcard_constraints:
    **WILDCARDS,


def cell(wildcards):
    """The cell that a key belongs to; an unknown key is an error, never a silent reuse."""
    try:
        return MATRIX.cell(wildcards.key)
    except UserError as error:
        raise WorkflowError(str(error)) from None


def inputs(stage):
    """What a stage reads that is not complete yet; nothing of one that is. Ancient: identity lies in the paths."""

    def of_job(wildcards):
        try:
            if RUNS_JOBS:  # here, as Snakemake has no such settings yet while it parses
                anncestry_workflow.refuse_remaking(workflow.dag_settings)
            missing = PLAN.missing_inputs(stage, wildcards)
        except UserError as error:
            raise WorkflowError(str(error)) from None
        return {label: ancient(path) for label, path in missing.items()}

    return unpack(of_job)


def paths(stage):
    """Where the files lie that the command of a stage reads, complete or not, by label."""

    def place(label):
        return lambda w: STAGES[stage].inputs(PLAN.cell(stage, w.key))[label]

    return {label: place(label) for label in STAGES[stage].needs}


def print_summary():
    """What was measured, in a table, and where the page is."""
    if Path(MATRIX.table_path).exists():
        shell('"$ANNCESTRY_PYTHON" -m anncestry summary')
