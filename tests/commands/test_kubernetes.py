"""The Kubernetes profile, as far as it can be seen without a cluster: what is asked of one, held against its schema."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from anncestry import kubernetes
from anncestry.errors import ConfigError, DataError, ServerError
from tests.toy import ROOT, Toy
from tests.waiting import until

SCHEMA = json.loads((ROOT / "tests/fixtures/kubernetes-job-1.32.schema.json").read_text())
MEASURED = {"rule": "session", "threads": 7, "resources": {"machines": 1, "mem_mb": 4096, "runtime": 1440}}
OTHER = {"rule": "truth_part", "threads": 4, "resources": {"mem_mb": 16384, "runtime": 240}}
GROUP = {"type": "group", "groupid": "scores", "threads": 1, "resources": {"mem_mb": 4096}}


@pytest.fixture(scope="module")
def profile():
    return yaml.safe_load((ROOT / "profiles/kubernetes/config.yaml").read_text())


def manifest(said, folder: Path) -> dict:
    script = folder / "snakejob.sh"
    script.write_text(f"#!/bin/sh\n# properties = {json.dumps(said)}\ntrue\n")
    return kubernetes.manifest(kubernetes.properties(script), script, folder)


def pod(job) -> dict:
    return job["spec"]["template"]["spec"]


@pytest.mark.parametrize("said", [MEASURED, OTHER, GROUP], ids=["measured", "other", "group"])
def test_every_job_is_one_that_kubernetes_knows_all_words_of(said, tmp_path):
    job = manifest(said, tmp_path)
    Draft7Validator(SCHEMA).validate(job)
    assert len(job["metadata"]["name"]) <= 63
    assert job["metadata"]["name"] != manifest(said, tmp_path)["metadata"]["name"]
    assert job["spec"]["template"]["metadata"]["labels"] == job["metadata"]["labels"]
    pod(job)["containers"][0]["imagee"] = "x"
    assert not Draft7Validator(SCHEMA).is_valid(job), "the schema would let anything pass"


@pytest.mark.parametrize("said", [MEASURED, OTHER], ids=["measured", "other"])
def test_a_job_is_tried_once_on_the_shared_volume_with_what_its_rule_asks_for(said, tmp_path):
    job = manifest(said, tmp_path)
    (container,) = pod(job)["containers"]
    assert (job["spec"]["backoffLimit"], pod(job)["restartPolicy"]) == (0, "Never")
    assert job["spec"]["activeDeadlineSeconds"] == 60 * said["resources"]["runtime"]
    assert container["resources"] == {
        "requests": {"cpu": str(said["threads"]), "memory": f"{said['resources']['mem_mb']}M"}
    }, "no limits: a measured job has what the node has"
    assert container["command"] == ["/bin/sh", str(tmp_path / "snakejob.sh")]
    assert container["workingDir"] == str(tmp_path)
    claims = [v["name"] for v in pod(job)["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] != "/dev/shm"]
    assert pod(job)["automountServiceAccountToken"] is False


def test_a_measured_job_has_a_node_for_itself_and_no_other_goes_there(tmp_path):
    measured, other = manifest(MEASURED, tmp_path), manifest(OTHER, tmp_path)
    (term,) = pod(measured)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (term["topologyKey"], term["namespaceSelector"]) == ("kubernetes.io/hostname", {})
    for job in (measured, other):
        assert term["labelSelector"]["matchLabels"].items() <= job["metadata"]["labels"].items()
    (toleration,) = pod(measured)["tolerations"]
    assert pod(measured)["nodeSelector"] == {toleration["key"]: toleration["value"]}
    assert not pod(other).keys() & {"affinity", "tolerations", "nodeSelector"}


@pytest.mark.parametrize(
    ("entry", "fine"),
    [
        ({"name": "MILVUS_KEY", "value": "s3cret"}, False),
        ({"name": "MILVUS_KEY", "valueFrom": {"secretKeyRef": {"name": "anncestry", "key": "MILVUS_KEY"}}}, True),
        ({"name": "XDG_CACHE_HOME", "value": "/anncestry/cache"}, True),
    ],
    ids=["clear", "reference", "no-secret"],
)
def test_a_secret_comes_by_reference_only(entry, fine, tmp_path, monkeypatch):
    for name in ("job.yaml", "measured.yaml"):
        body = yaml.safe_load((ROOT / "profiles/kubernetes" / name).read_text())
        if name == "job.yaml":
            pod(body)["containers"][0]["env"] = [entry]
        (tmp_path / name).write_text(yaml.safe_dump(body))
    monkeypatch.setenv("ANNCESTRY_KUBERNETES", str(tmp_path))
    if fine:
        job = manifest(MEASURED, tmp_path)
        Draft7Validator(SCHEMA).validate(job)
        assert pod(job)["containers"][0]["env"] == [entry]
    else:
        with pytest.raises(ConfigError, match=r"env MILVUS_KEY: a value in the clear") as refused:
            manifest(MEASURED, tmp_path)
        assert "s3cret" not in str(refused.value)


def conditions(*met: str) -> dict:
    return {"status": {"conditions": [{"type": type, "status": "True"} for type in met]}}


def test_what_became_of_a_job_is_what_its_conditions_say():
    assert kubernetes.state({}) == kubernetes.state({"status": {"active": 1}}) == "running"
    assert kubernetes.state(conditions("SuccessCriteriaMet")) == "running", "its pod is not gone yet"
    assert kubernetes.state(conditions("SuccessCriteriaMet", "Complete")) == "success"
    assert kubernetes.state(conditions("FailureTarget", "Failed")) == "failed"
    assert kubernetes.state({"status": {"conditions": [{"type": "Complete", "status": "False"}]}}) == "running"


def test_what_is_no_job_script_is_refused(tmp_path):
    script = tmp_path / "snakejob.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    with pytest.raises(DataError, match=r"snakejob\.sh: not a job script"):
        kubernetes.properties(script)


def test_where_no_cluster_answers_kubectls_own_reason_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="kubectl is not installed"):
        kubernetes.status("anncestry-load-0")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho noise >&2; echo 'error: no context is set' >&2; exit 1\n")
    kubectl.chmod(0o755)
    with pytest.raises(ServerError, match="kubectl delete: error: no context is set"):
        kubernetes.cancel(["anncestry-load-0"])


def test_a_job_of_which_nothing_can_be_heard_for_a_moment_is_not_given_up(tmp_path, monkeypatch, capsys):
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'the connection was refused' >&2; exit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kubernetes.main(["--status", "anncestry-load-0"]) == 0
    said = capsys.readouterr()
    assert said.out == "running\n" and "the connection was refused: taken for running" in said.err


def test_profile_says_of_the_rules_what_that_of_slurm_says(profile):
    default, slurm = (
        yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text()) for name in ("default", "slurm")
    )
    assert {name: profile[name] for name in default} == default
    for name in ("groups", "group-components", "default-resources", "resources", "latency-wait"):
        assert profile[name] == slurm[name], name
    plain = {"machines", "runtime", "mem_mb"}
    for rule, asked in slurm["set-resources"].items():
        assert profile["set-resources"][rule] == {name: asked[name] for name in asked.keys() & plain}, rule
    assert {entry.partition("=")[0] for entry in profile["set-threads"]} == {"load", "session", "duet", "rounds"}


KUBECTL = '''#!{python}
"""Stands for a cluster of this machine alone: keeps Jobs as files, runs the command of each as a process."""
import json, os, subprocess, sys
from pathlib import Path

from jsonschema import Draft7Validator

place = Path({place!r})
verb, *words = sys.argv[1:]

def status(name):
    ended = place / (name + ".exit")
    met = [] if not ended.exists() else ["Failed" if int(ended.read_text()) else "Complete"]
    return {{"conditions": [{{"type": each, "status": "True"}} for each in met]}}

if verb == "create":
    assert words == ["--filename", "-"], words
    job = json.load(sys.stdin)
    Draft7Validator(json.loads(Path({schema!r}).read_text())).validate(job)
    name, container = job["metadata"]["name"], job["spec"]["template"]["spec"]["containers"][0]
    (place / (name + ".half")).write_text(json.dumps(job))
    # A pod has the variables of its image, and those that the manifest gives it: none of the caller's.
    # None starts as long as the file `full` is there: no node has room.
    room = 'while [ -e "${{0%/*}}/full" ]; do sleep 0.1; done; '
    command = room + '"$@" > "$0.log" 2>&1; echo $? > "$0.tmp"; mv "$0.tmp" "$0.exit"'
    subprocess.Popen(["/bin/sh", "-c", command, str(place / name), *container["command"]],
                     cwd=container["workingDir"], env={environment!r}, start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (place / (name + ".half")).rename(place / (name + ".json"))
elif verb == "get" and words[0] == "jobs":
    assert words[1] == "--selector" and words[3:] == ["--output", "json"], words
    name, value = words[2].split("=")
    jobs = [json.loads(path.read_text()) for path in place.glob("*.json")]
    jobs = [job for job in jobs if job["metadata"]["labels"][name] == value]
    print(json.dumps({{"items": [{{**job, "status": status(job["metadata"]["name"])}} for job in jobs]}}))
elif verb == "get":
    assert words[0] == "job" and words[2:] == ["--ignore-not-found", "--output", "json"], words
    if (place / (words[1] + ".json")).exists():
        print(json.dumps({{"status": status(words[1])}}))
else:
    sys.exit("unknown: " + verb)
'''


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder that stands for a cluster, which `kubectl` finds; its Jobs have ended when the test has."""
    place, programs = tmp_path / "cluster", tmp_path / "programs"
    place.mkdir()
    programs.mkdir()
    inside = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    schema = ROOT / "tests/fixtures/kubernetes-job-1.32.schema.json"
    texts = {
        "kubectl": KUBECTL.format(python=sys.executable, place=str(place), schema=str(schema), environment=inside),
        "anncestry-kubernetes": f'#!/bin/sh\nexec {sys.executable} -m anncestry.kubernetes "$@"\n',
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    yield place
    (place / "full").unlink(missing_ok=True)
    ended(place)


def submitted(place: Path) -> list[str]:
    """Names of the Jobs that a cluster was given."""
    return sorted(path.stem for path in place.glob("*.json"))


def ended(place: Path) -> None:
    """Wait until all of a cluster's Jobs have."""
    until(lambda: all((place / f"{name}.exit").exists() for name in submitted(place)), "Jobs to end")


def test_a_run_is_refused_by_name_while_jobs_of_a_killed_one_live(cluster, tmp_path, monkeypatch):
    toy = Toy.make(tmp_path / "place")
    script = toy.folder / "snakejob.sh"
    script.write_text(f"#!/bin/sh\n# properties = {json.dumps(OTHER)}\ntrue\n")
    script.chmod(stat.S_IRWXU)
    (cluster / "full").touch()
    name = kubernetes.submit(script, toy.folder)
    refused = toy.snakemake(check=False)
    assert refused.returncode != 0 and "Traceback" not in refused.stderr
    assert "Kubernetes still has Jobs of an earlier run that was killed" in refused.stderr
    assert f"kubectl delete job {name}" in refused.stderr
    assert toy.snakemake("-n").returncode == 0, "looking is allowed"
    other = tmp_path / "other"
    other.mkdir()
    another = kubernetes.submit(script, other)
    with pytest.raises(DataError, match=rf"kubectl delete job {another}$"):
        kubernetes.refuse_living(other)  # Jobs of another folder are no business of this one
    (cluster / "full").unlink()
    ended(cluster)
    kubernetes.refuse_living(toy.folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    kubernetes.refuse_living(toy.folder)  # once none lives, nobody is asked again


def test_a_run_is_refused_where_it_cannot_be_known_whether_jobs_of_a_killed_one_live(cluster, tmp_path, monkeypatch):
    script = tmp_path / "snakejob.sh"
    script.write_text(f"#!/bin/sh\n# properties = {json.dumps(OTHER)}\n")
    script.chmod(stat.S_IRWXU)
    kubernetes.submit(script, tmp_path)
    kubectl = tmp_path / "programs" / "kubectl"
    for says, why in (("echo refused >&2; exit 1", "kubectl get: refused"), ("echo hello", "no list of Jobs")):
        kubectl.write_text(f"#!/bin/sh\n{says}\n")
        with pytest.raises(
            DataError, match=rf"may still be at work.*{why}.*remove {tmp_path}/\S+ if that cluster is gone"
        ):
            kubernetes.refuse_living(tmp_path)


@pytest.mark.slurm
def test_the_workflow_runs_by_the_profile_with_nothing_but_the_shared_volume_between_jobs(cluster, tmp_path):
    """Executor, submission, status and the jobs are real; the cluster is a folder of this machine.

    A first run is killed when it has submitted its first Jobs; the next is refused until those have ended.
    """
    by_profile = ("--profile", str(ROOT / "profiles/kubernetes"), "--latency-wait", "5")
    toy = Toy.make(tmp_path / "place")
    toy.one_cell()
    (cluster / "full").touch()
    with toy.running(*by_profile) as run:
        until(lambda: submitted(cluster), "a Job to be made")
        run.kill()
        run.wait()
    refused = toy.snakemake(*by_profile, check=False)
    assert refused.returncode != 0
    assert f"kubectl delete job {' '.join(submitted(cluster))}" in refused.stdout + refused.stderr
    (cluster / "full").unlink()
    ended(cluster)
    toy.snakemake(*by_profile)
    assert toy.jobs() == {}
    jobs = [json.loads(path.read_text()) for path in cluster.glob("*.json")]
    rules = [job["metadata"]["labels"]["anncestry/rule"] for job in jobs]
    once = ["artifact", "download", "load", "normalize", "publish", "query", "record", "scores", "truth"]
    assert sorted(rules) == sorted([*once, "session", "session"])
    assert {rule for rule, job in zip(rules, jobs, strict=True) if "affinity" in pod(job)} == {"load", "session"}
    done = subprocess.run(["kubectl", "get", "job", "x"], capture_output=True, check=False)
    assert done.returncode != 0, "what the stand-in is not asked for here, it does not know"
