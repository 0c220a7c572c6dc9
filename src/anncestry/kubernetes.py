"""Jobs of the workflow as Jobs of Kubernetes: what profiles/kubernetes has Snakemake's cluster-generic executor call.

A Job is made from the templates beside the profile and runs Snakemake's own job script, on a volume that all pods and
whoever calls Snakemake have mounted at the same path. The cluster is spoken to by `kubectl`, which is whatever the user
has, with the user's context and namespace.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from anncestry.errors import ConfigError, DataError, ServerError, UserError
from anncestry.home import PROFILES

TEMPLATES = PROFILES / "kubernetes"
FOLDER = "anncestry/folder"
"""Label: the digest of the working directory that a Job belongs to."""
_PROPERTIES = "# properties = "
_NAME_CHARS = 63
_IN_CLEAR = frozenset({"HOME", "LANG", "PATH", "TMPDIR", "TZ", "XDG_CACHE_HOME"})
_ASK_S = 60
_SUBMITTED = Path(".snakemake") / "anncestry-kubernetes"
"""In a working directory: is there if Jobs were made from it that may still live."""


def folder_label(here: Path) -> str:
    """Of a working directory: as a path is no label."""
    return hashlib.sha256(str(here.resolve()).encode()).hexdigest()[:16]


def properties(script: Path) -> dict[str, Any]:
    """What Snakemake says of a job in its job script: rule or group, threads, resources; DataError if it doesn't."""
    for line in script.read_text().splitlines():
        if line.startswith(_PROPERTIES):
            said = json.loads(line.removeprefix(_PROPERTIES))
            assert isinstance(said, dict)
            return said
    raise DataError(f"{script}: not a job script of Snakemake's: it has no line {_PROPERTIES.strip()!r}")


def _template(name: str) -> dict[str, Any]:
    path = Path(os.environ.get("ANNCESTRY_KUBERNETES", TEMPLATES)) / name
    try:
        body = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(body, dict):
        raise ConfigError(f"{path}: not a manifest")
    return body


def merged(base: Any, more: Any) -> Any:
    """`base` with the keys of `more` in it, mapping by mapping; of all else, lists too, `more` has the last word."""
    if not isinstance(base, Mapping) or not isinstance(more, Mapping):
        return copy.deepcopy(more)
    return {**base, **{key: merged(base.get(key), value) for key, value in more.items()}}


def manifest(said: Mapping[str, Any], script: Path, here: Path) -> dict[str, Any]:
    """The Job that runs `script` for the working directory `here`; `said` are its `properties`.

    One with the resource `machines` is measured, and gets measured.yaml on top of job.yaml.
    """
    resources = said.get("resources", {})
    body = _template("job.yaml")
    if resources.get("machines"):
        body = merged(body, _template("measured.yaml"))
    rule = str(said.get("rule") or said.get("groupid") or "group")
    name = re.sub(r"[^a-z0-9]+", "-", rule.lower()).strip("-")[: _NAME_CHARS - 20]
    labels = {"anncestry/rule": name, FOLDER: folder_label(here)}
    wanted: dict[str, str] = {"cpu": str(said.get("threads", 1))}
    if resources.get("mem_mb"):
        wanted["memory"] = f"{resources['mem_mb']}M"
    filled: dict[str, Any] = {
        "metadata": {"name": f"anncestry-{name}-{secrets.token_hex(4)}", "labels": labels},
        "spec": {"template": {"metadata": {"labels": labels}}},
    }
    if resources.get("runtime"):
        filled["spec"]["activeDeadlineSeconds"] = int(resources["runtime"]) * 60
    body = merged(body, filled)
    try:
        container = body["spec"]["template"]["spec"]["containers"][0]
    except (KeyError, IndexError, TypeError):
        raise ConfigError("profiles/kubernetes/job.yaml: spec.template.spec.containers: none is there") from None
    container["command"] = ["/bin/sh", str(script.resolve())]
    container["workingDir"] = str(here.resolve())
    container["resources"] = merged(container.get("resources", {}), {"requests": wanted})
    for entry in container.get("env", ()):
        if "value" in entry and entry["name"] not in _IN_CLEAR:
            raise ConfigError(
                f"profiles/kubernetes/job.yaml: env {entry['name']}: a value in the clear: everybody who may look at "
                "jobs would read it; put it into a secret, and refer to it by valueFrom.secretKeyRef"
            )
    return dict(body)


def _kubectl(*words: str, told: str | None = None) -> str:
    """What kubectl answers; ServerError with its last line if it fails."""
    try:
        done = subprocess.run(
            ["kubectl", *words], input=told, capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except FileNotFoundError:
        raise ServerError("kubectl is not installed: it is how jobs reach Kubernetes") from None
    except subprocess.TimeoutExpired:
        raise ServerError(f"kubectl {words[0]}: no answer within {_ASK_S} s") from None
    if done.returncode != 0:
        raise ServerError(f"kubectl {words[0]}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return done.stdout


def submit(script: Path, here: Path) -> str:
    """Have a Job made that runs a job script; returns its name."""
    body = manifest(properties(script), script, here)
    (here / _SUBMITTED).parent.mkdir(exist_ok=True)
    (here / _SUBMITTED).touch()
    _kubectl("create", "--filename", "-", told=json.dumps(body))
    return str(body["metadata"]["name"])


def state(job: Mapping[str, Any]) -> str:
    """success, failed or running, of a Job as Kubernetes shows it. It has failed for good: `backoffLimit` is 0."""
    met = {each["type"] for each in job.get("status", {}).get("conditions", ()) if each["status"] == "True"}
    if "Complete" in met:
        return "success"
    return "failed" if "Failed" in met else "running"


def status(name: str) -> str:
    """`state` of a Job by its name; one that is gone has failed.

    Where Kubernetes does not say it is running: a run of days is not over for a minute without an answer, and it is
    asked again soon.
    """
    try:
        text = _kubectl("get", "job", name, "--ignore-not-found", "--output", "json")
    except ServerError as error:
        if isinstance(error.__context__, FileNotFoundError):
            raise
        print(f"anncestry-kubernetes: {name}: {error}: taken for running", file=sys.stderr)
        return "running"
    return state(json.loads(text)) if text.strip() else "failed"


def refuse_living(here: Path) -> None:
    """DataError if Jobs that were made from the working directory `here` have not ended; names them.

    Also if the cluster can't be asked. It isn't where no Job was made since it was last seen that none lives.
    """
    note = here / _SUBMITTED
    if not note.exists():
        return
    try:
        text = _kubectl("get", "jobs", "--selector", f"{FOLDER}={folder_label(here)}", "--output", "json")
        found = {str(job["metadata"]["name"]): state(job) for job in json.loads(text)["items"]}
    except (ServerError, ValueError, LookupError, TypeError) as error:
        why = str(error) if isinstance(error, ServerError) else "kubectl get: no list of Jobs"
        raise DataError(
            f"{here.resolve()}: Jobs of an earlier run may still be at work, and Kubernetes does not say ({why}): try "
            f"again when it does, or remove {note} if that cluster is gone"
        ) from None
    living = sorted(name for name, how in found.items() if how == "running")
    if living:
        raise DataError(
            f"{here.resolve()}: Kubernetes still has Jobs of an earlier run that was killed: wait for them, or "
            f"kubectl delete job {' '.join(living)}"
        )
    note.unlink()


def cancel(names: Sequence[str]) -> None:
    """Have Jobs removed with their pods, which are told to end (SIGTERM) first; does not wait for it."""
    _kubectl("delete", "job", *names, "--ignore-not-found", "--wait=false", "--cascade=foreground")


def main(arguments: Sequence[str] | None = None) -> int:
    """One of the three; returns the exit status, 2 with a sentence where the user can mend it."""
    parser = argparse.ArgumentParser(prog="anncestry-kubernetes", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--submit", type=Path, metavar="SCRIPT", help="submit a job script; prints the Job's name")
    what.add_argument("--status", metavar="JOB", help="print running, success or failed")
    what.add_argument("cancel", nargs="*", default=[], metavar="JOB", help="cancel these")
    options = parser.parse_args(arguments)
    try:
        if options.submit:
            print(submit(options.submit, Path.cwd()))
        elif options.status:
            print(status(options.status))
        else:
            cancel(options.cancel)
    except UserError as error:
        print(f"anncestry-kubernetes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
