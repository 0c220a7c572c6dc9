"""What a job of the workflow costs beside its work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.toy import ROOT

JOB = """
import sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
from anncestry.commands import rules

rules._keep_pandas_out()
pq.write_table(pa.table({"name": ["a", None], "value": pa.array([1.0, 2.0])}), sys.argv[1])
assert pq.read_table(sys.argv[1])["name"].to_pylist() == ["a", None]
print("pandas" in sys.modules)
import pandas
print(pandas.DataFrame({"value": [1, 2]})["value"].sum())
"""


def test_a_measuring_job_writes_its_samples_without_importing_pandas_which_is_there_for_who_asks(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "samples.parquet")], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.stdout.split() == ["False", "3"], done.stderr
