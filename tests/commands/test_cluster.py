"""What the cluster profiles promise, as far as it can be seen without a cluster; test_slurm.py has one."""

from __future__ import annotations

import re

import pytest
import yaml

from anncestry import workflow
from anncestry.errors import ConfigError
from tests.toy import ROOT, Toy


@pytest.fixture(scope="module")
def slurm():
    return yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())


@pytest.fixture(scope="module")
def rules():
    """Of each rule of the Snakefile, its text."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "workflow/rules").glob("*.smk")))
    parts = re.split(r"^rule (\w+):$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_a_cluster_reruns_what_a_laptop_reruns(slurm):
    default = yaml.safe_load((ROOT / "profiles/default/config.yaml").read_text())
    assert {name: slurm[name] for name in default} == default


def test_the_measured_rules_and_no_others_get_a_machine_for_themselves(slurm, rules):
    measured = {name for name, text in rules.items() if "threads: 4096" in text}
    assert measured == {"load", "session", "duet", "rounds"}
    own = {name for name, entry in slurm["set-resources"].items() if "--exclusive" in entry.get("slurm_extra", "")}
    assert own == measured
    for name in measured:
        entry = slurm["set-resources"][name]
        assert (entry["nodes"], entry["machines"]) == (1, 1), "one node, in the order of the plan"
    assert {entry.partition("=")[0] for entry in slurm["set-threads"]} == measured, "4096 cores are on no node"
    assert slurm["resources"] == ["machines=1"]


def test_profile_names_rules_that_exist(slurm, rules):
    assert set(slurm["set-resources"]) <= set(rules)
    assert {entry.partition("=")[0] for entry in slurm["groups"]} <= set(rules)


def test_no_measurement_shares_a_group_whose_failure_would_remove_it(slurm):
    grouped = {entry.partition("=")[0] for entry in slurm["groups"]}
    assert not grouped & {"load", "record", "session", "duet", "rounds", "query", "pair"}


def test_driver_hosts_of_a_topology_is_refused_with_where_it_belongs(tmp_path):
    toy = Toy.make(tmp_path)
    toy.files["topologies"]["standalone"]["driver_hosts"] = ["CLIENTS"]
    toy.save()
    with pytest.raises(ConfigError, match=r"topologies.yaml: \S+: driver_hosts: belongs to a workload"):
        workflow.expand(workflow.Choice(tmp_path / "config", "default"))
