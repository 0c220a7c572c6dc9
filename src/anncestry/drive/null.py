"""The null server, which sends prepared replies at once or with configured faults."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from anncestry.drive import build
from anncestry.errors import ServerError


class NullServer:
    """A null server while the block lasts. `kind`: grpc, http, mysql, postgres, redis; the rest: `plan` of its source.

    With `certificate` and `key` (files) it speaks TLS; a transport's `tls` then is the caller's to say.
    """

    def __init__(self, kind: str, *, environment: dict[str, str] | None = None, **plan: Any) -> None:
        self.kind = kind
        self._process = subprocess.Popen(
            [str(build.programs().nullserver), json.dumps({"kind": kind, **plan})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            assert self._process.stderr is not None
            reason = self._process.stderr.read().strip()
            self.stop()
            raise ServerError(f"the null server did not start: {reason}")
        self.target = f"127.0.0.1:{line}"

    def __enter__(self) -> NullServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def transport(self) -> dict[str, Any]:
        """The transport of a job that reaches it."""
        how: dict[str, dict[str, Any]] = {
            "grpc": {"method": "/null.Null/Answer"},
            "http": {"method": "POST", "path": "/v1/answer", "headers": {"Content-Type": "application/json"}},
            "mysql": {"user": "root", "init": ["SET autocommit = 1"]},
            "postgres": {"user": "root", "database": "null", "init": ["SET jit = off"], "prepare": ["SELECT 1"]},
            "redis": {},
        }
        return {"kind": self.kind, "target": self.target, **how[self.kind]}

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise ServerError(f"the null server ended ({self._process.returncode})")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                stream.close()
