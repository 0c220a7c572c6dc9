"""Stand-ins as programs of an artifact: started as the server that they stand for is, and told the same."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.toy import ROOT

_PROGRAM = """#!{python}
import json, os, signal, sys
sys.path[:0] = [{root!r}, {source!r}]
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
Path({told!r}).write_text(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
{imports}
with {standin}:
    signal.sigwait({{signal.SIGTERM}})
"""


def program(folder: Path, name: str, imports: str, standin: str) -> Path:
    """An artifact with the program `name`; returns the file into which that writes what it was told, as JSON.

    `standin` is an expression of a context manager in which it listens, of what the lines `imports` have.
    """
    folder.mkdir(parents=True)
    told = folder / "told.json"
    text = _PROGRAM.format(
        python=sys.executable,
        root=str(ROOT),
        source=str(ROOT / "src"),
        told=str(told),
        imports=imports,
        standin=standin,
    )
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return told
