"""After a `make test` with failures in one or two files: run the failed tests once more, alone.

Beside three others on two cores, a test may meet a pause or a port that it never meets alone. What passes alone is no
longer a failure of the product, but of the test, and the last lines name it: it is to be mended. What fails alone, and
failures in more files, stay failures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED, MOST_FILES = Path(".pytest_cache/v/cache/lastfailed"), 2


def main(status: int, options: list[str]) -> int:
    """The status to exit with, after `status` of a run of pytest in this folder, begun with an empty cache."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    files = {test.partition("::")[0] for test in failed}
    if status != 1 or not 0 < len(files) <= MOST_FILES:
        return status
    print(f"\nOnce more, alone: {', '.join(failed)}", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", *options, *failed], check=False).returncode
    if again == 0:
        print("MEND THESE TESTS. Beside others they failed, alone they passed:")
        print("\n".join(f"  {test}" for test in failed))
    return again


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
