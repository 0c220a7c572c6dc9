"""A server of S3's protocol."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """moto's S3 server in a process of its own, on a port that the system chose; yields its address."""
    with open(log, "w") as file:
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", "moto.server", "--host", "127.0.0.1", "--port", "0"],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 300
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        server.terminate()
        try:
            server.wait(timeout=120)
        finally:
            server.kill()
