"""What SECURITY.md promises: secrets stay in the environment, what was fetched is distrusted, config is only data."""

from __future__ import annotations

import ast
import base64
import ctypes
import json
import re
import secrets
import stat
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
import yaml

from anncestry import cli, commands, redact, user_cache
from anncestry.cells import config
from anncestry.cells.spec import Schema
from anncestry.cells.stage import STAGES, WILDCARDS
from anncestry.datasets import fetching
from anncestry.drive import protocol
from anncestry.drive.driver import Driver
from anncestry.engines import get
from anncestry.errors import ConfigError, DataError, ServerError
from anncestry.report.model import numbers
from anncestry.runtimes import artifacts
from anncestry.runtimes.building import unpack
from anncestry.runtimes.credentials import authorization
from anncestry.runtimes.remote import endpoint
from tests import hostile
from tests.flat.engine import ENGINE as flat
from tests.hostile import forms
from tests.toy import ROOT, Toy

PACKAGE = sorted((ROOT / "src" / "anncestry").rglob("*.py"))
RULES = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]

VARIABLE = "PLANTED_KEY"
REPEATS = "blue-1.0"
"""The system that repeats the key."""
HOSTILE = '</title><script>alert("owned")</script> "; touch owned; $(touch owned) `touch owned` {input}'
EXPORTS = [
    ["why", "{number}"],
    ["why", "{number}", "--json"],
    ["export", "crate", "crate"],
    ["export", "prov", "prov.json"],
    ["cells"],
    ["plan"],
    ["verify"],
]


# Secrets


@contextmanager
def process_list() -> Iterator[set[str]]:
    """All command lines that any user sees while the block lasts, a few times a second."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Toy, str, str]]:
    """A finished toy whose every search had to show a secret of the environment: (toy, secret, all that was said).

    Of its two systems the second repeats the secret in every fifth error, and in its settings.
    """
    secret = f"planted-{secrets.token_hex(16)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, secret)
        toy = Toy.make(tmp_path_factory.mktemp("planted"))
        toy.one_cell()
        toy.block["systems"] = ["red-1.0", REPEATS]
        toy.files["systems"]["red-1.0"]["settings"] = {"authorization": VARIABLE}
        toy.files["systems"][REPEATS]["settings"] = {"authorization": VARIABLE, "lie": "echo"}
        toy.files["config"]["title"] = HOSTILE
        with process_list() as commands:
            done = toy.snakemake()
        assert any("flat/server.py" in command and str(toy.folder) in command for command in commands)
        said = done.stdout + done.stderr + "\n".join(commands)
        patch.chdir(toy.folder)
        patch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
        yield toy, secret, said


def record_of(toy: Toy, stage: str, system: str) -> dict[str, Any]:
    (path,) = (toy.folder / "results" / stage).glob(f"*/{system}/**/*@*.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def echoed(secret: str) -> str:
    """What a server may say of it."""
    return "invalid key: " + " or ".join(form.decode() for form in forms(secret))


def holding(folder: Path, secret: str, at_least: int = 20) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > at_least, "there is something to look through"
    return [str(path) for path in files if any(form in path.read_bytes() for form in forms(secret))]


def shown(said: str, secret: str) -> list[bytes]:
    """The forms of a secret in a text."""
    return [form for form in forms(secret) if form in said.encode()]


def test_the_secret_was_used_its_variable_is_named_and_itself_is_in_no_file_and_no_output(planted) -> None:
    toy, secret, said = planted
    loaded, measured = (record_of(toy, stage, "red-1.0") for stage in ("load", "query"))
    assert loaded["spec"]["system"]["settings"] == {"authorization": VARIABLE}
    assert measured["valid"], measured["gates"]
    assert shown(said, secret) == [], "nor in the list of processes"
    assert holding(toy.folder, secret) == []


def test_what_is_exported_holds_no_secret_either(planted, capfd: pytest.CaptureFixture[str]) -> None:
    toy, secret, _ = planted
    (row,) = [
        row
        for row in json.loads(next((toy.folder / "results" / "table").rglob("numbers.json")).read_text())
        if (row["metric"], row["system"]) == ("recall_by_id", "red-1.0")
    ]
    for command in EXPORTS:
        words = [word.format(number=row["number_id"]) for word in command]
        assert cli.main(words) == 0, (command, capfd.readouterr())
    said = capfd.readouterr()
    assert secret not in said.out + said.err
    assert holding(toy.folder, secret) == []


def test_without_the_secret_the_server_lets_nobody_search_and_the_cell_is_no_number(
    planted, tmp_path, monkeypatch
) -> None:
    """So that the tests above are about a secret that matters."""
    toy, secret, _ = planted
    monkeypatch.setenv(VARIABLE, secret)
    server = flat.start(tmp_path, tmp_path / "data", toy.files["systems"]["red-1.0"], {"nodes": 1})
    try:
        with pytest.raises(ServerError, match="UNAUTHENTICATED"):
            server.call("Search", {})
    finally:
        server.stop()


# What a server repeats of them (finding 4 of the review of security)


def test_a_secret_that_the_server_repeats_is_named_in_records_and_on_the_page_and_shown_nowhere(
    planted, capfd: pytest.CaptureFixture[str]
) -> None:
    toy, secret, said = planted
    (failure,) = record_of(toy, "query", REPEATS)["failures"]
    assert failure.startswith(f"UNAUTHENTICATED: flat: invalid key: Bearer [value of {VARIABLE}], that is ")
    assert f'"key": "[value of {VARIABLE}]"' in json.dumps(record_of(toy, "load", REPEATS))
    for command in EXPORTS[2:]:
        cli.main(command)
    out, err = capfd.readouterr()
    assert shown(said + out + err, secret) == []
    assert holding(toy.folder, secret) == []


def test_the_last_words_of_a_server_are_shown_without_the_secret(tmp_path, monkeypatch) -> None:
    secret = f"repeated-{secrets.token_hex(16)}"
    monkeypatch.setenv(VARIABLE, secret)
    toy = Toy.make(tmp_path)
    toy.files["systems"]["red-1.0"]["settings"] = {"authorization": VARIABLE, "lie": "echo-and-die"}
    toy.one_cell()
    done = toy.snakemake(check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and f"flat: [value of {VARIABLE}] is no good key" in said
    assert shown(said, secret) == []
    # What the server itself wrote into its own log is not ours to change.
    assert {Path(path).name for path in holding(toy.folder, secret, 6)} <= {"server.log"}


REMOTE = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "credentials": VARIABLE, "tls": "none"}
ENDPOINT = "PLANTED_ENDPOINT"
WIRES = [
    *(("native", kind, "answer") for kind in ("grpc", "http", "mysql", "postgres")),
    *(("native", kind, "login") for kind in ("mysql", "postgres")),
    *(("python", kind, "answer") for kind in ("grpc", "http")),
]


def says(kind: str, text: str, number: int = 1) -> bytes:
    """An answer that fails, as each protocol has it; `number` is that of MySQL's packet."""
    body = text.encode()
    return {
        "grpc": hostile.frame(1, 4, 1, b"\x88")
        + hostile.frame(1, 5, 1, hostile.literal(b"grpc-status", b"16") + hostile.literal(b"grpc-message", body)),
        "http": b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
        "mysql": hostile.packet(number, b"\xff\x15\x04#28000" + body),
        "postgres": hostile.message(b"E", b"SERROR\0C28P01\0M" + body + b"\0\0") + hostile.READY,
    }[kind]


@pytest.fixture
def planted_key(monkeypatch: pytest.MonkeyPatch) -> str:
    secret = f"planted-{secrets.token_hex(16)}"
    monkeypatch.setenv(VARIABLE, secret)
    monkeypatch.setattr(hostile, "PASSWORD", secret)
    return secret


@pytest.mark.parametrize(("program", "kind", "when"), WIRES)
def test_a_driver_leaves_neither_a_secret_that_a_server_repeats_nor_its_address(
    program: str, kind: str, when: str, planted_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile.hostile(kind, how=b"", harm=hostile.BEFORE[kind] if when == "answer" else 0) as server:
        monkeypatch.setenv(ENDPOINT, server.target)
        server.how = says(kind, f"{server.target} says: {echoed(planted_key)}")
        target = endpoint({**REMOTE, "endpoints": {"sql": ENDPOINT}}, "sql")
        how = {**server.transport, "target": target}
        if "password_env" in how:
            how["password_env"] = VARIABLE
        elif kind == "grpc":
            how["authorization"] = {"env": VARIABLE, "scheme": "bearer"}
        authorization({"env": VARIABLE, "scheme": "bearer"})
        protocol.write_requests(tmp_path, [b"request"])
        rows = np.zeros((1, 1), int)
        protocol.write_job(tmp_path, requests=tmp_path, transport=how, schedule=rows, prime=rows[:, :0], timeout_s=30.0)
        with Driver(program) as driver:
            if when == "login":
                with pytest.raises(ServerError) as error:
                    driver.run(tmp_path)
                said = str(error.value)
            else:
                driver.run(tmp_path)
                said = (tmp_path / "done.json").read_text()
    assert f"[address of {ENDPOINT}] says: invalid key: [value of {VARIABLE}]" in said
    assert shown(said, planted_key) == [] and target not in said
    assert holding(tmp_path, planted_key, 6) == []
    assert [path.name for path in tmp_path.iterdir() if target.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(("engine", "kind", "interface"), [("pgvector", "postgres", "sql"), ("mysql",) * 3])
def test_what_an_engine_is_told_by_a_server_is_shown_without_secret_and_address(
    engine: str, kind: str, interface: str, planted_key: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with hostile.hostile(kind, how=b"", harm=0) as server:
        monkeypatch.setenv(ENDPOINT, server.target)
        server.how = says(kind, f"{server.target} says: {echoed(planted_key)}", 0)
        topology = {**REMOTE, "endpoints": {interface: ENDPOINT}}
        system = {"version": "8.0.2", "settings": {"dialect": "polardb"} if engine == "mysql" else {}}

        def cells(run: object, options: object) -> None:
            """Stands for a command that starts this engine."""
            get(engine).start(tmp_path, tmp_path / "data", system, topology)

        monkeypatch.setattr(commands.cells, "cells", cells)
        assert cli.main(["--log", str(tmp_path / "log"), "cells"]) == 2
    said = capfd.readouterr().err
    assert said == (tmp_path / "log").read_text()
    assert f"[address of {ENDPOINT}] says: invalid key: [value of {VARIABLE}]" in said
    assert shown(said, planted_key) == [] and server.target not in said


def test_an_address_is_named_however_it_is_written_and_what_is_like_it_stays() -> None:
    redact.address("TEST_NAMED", "db.example.org:8443")
    redact.address("TEST_SIX", "[2001:db8::7]:443")
    redact.address("TEST_BARE", "host-of-theirs:5432")
    redact.address("TEST_OURS", "127.0.0.1:65001")
    mark = "[address of {}]".format
    for said, named in {
        "ipv6:%5B2001:db8::7%5D:443: refused": f"ipv6:{mark('TEST_SIX')}: refused",
        'to "DB.example.org" (x), port 8443': f'to "{mark("TEST_NAMED")}" (x), port 8443',
        "db.example.org:8443, db.example.org.": f"{mark('TEST_NAMED')}, {mark('TEST_NAMED')}.",
        "on 'host-of-theirs' (111)": f"on '{mark('TEST_BARE')}' (111)",
        "127.0.0.1:65001 and 127.0.0.1:650012": f"{mark('TEST_OURS')} and 127.0.0.1:650012",
        "mydb.example.org, db.example.organic, 127.0.0.1": "mydb.example.org, db.example.organic, 127.0.0.1",
    }.items():
        assert redact.text(said) == named
    assert redact.addresses()[mark("TEST_NAMED")] == "db.example.org:8443"


@pytest.mark.parametrize("secret", ['pass-wörd "quoted" \\ %41+/=?', "a" * 9, "0123456789abcdef"])
def test_a_secret_is_named_in_every_form_that_an_error_may_have_it_in(secret: str) -> None:
    redact.secret("TEST_FORMS", secret)
    named, raw = "[value of TEST_FORMS]", secret.encode()
    texts = (repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret), quote(secret, safe=""))
    for form in (secret, *texts, raw.hex(), raw.hex().upper()):
        assert redact.text(f"no: {form}!") == f"no: {named}!"
        assert redact.text(f"no: {form.upper()}!" if form == raw.hex() else named).count(named) == 1
    for ahead in range(4):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = redact.text(encode(b"u" * ahead + raw + b":v").decode())
            assert named in text and len(text) <= len(named) + 12
    assert redact.body({"errors": {secret: 1, named: 2}}) == {"errors": {named: 3}}


def test_a_secret_that_whoever_quotes_it_cut_is_named_too() -> None:
    redact.secret("TEST_CUT", "sk-verylongkey-0123456789")
    redact.secret("TEST_ALIKE", "sk-verylongkey-abcdefghij")
    for said in ("sk-verylongkey-01234…", "sk-verylongkey", base64.b64encode(b"Bearer sk-verylongkey-01").decode()):
        assert "[value of TEST_" in redact.text(f"no: {said}") and "long" not in redact.text(said)
    assert redact.text("sk-verylongkey-abcdefghij") == "[value of TEST_ALIKE]"
    redact.secret("TEST_LOGIN", "somebody:with-a-password")
    assert redact.text("somebody may not use with-a-password") == "somebody may not use [value of TEST_LOGIN]"


def test_a_weak_secret_is_named_in_sentences_and_changes_no_word_and_no_name(monkeypatch) -> None:
    monkeypatch.setattr(redact, "_of_sentences", redact._Rules())  # without the secrets of other tests
    redact.secret("TEST_WEAK", "l2x")
    assert redact.text("the key l2x is wrong") == "the key [value of TEST_WEAK] is wrong"
    assert redact.body({"l2x": "l2x", "b": "all2x are wrong"}) == {"l2x": "l2x", "b": "all2x are wrong"}


# Config is data


def test_what_a_config_says_is_neither_run_by_a_shell_nor_markup_in_a_page(planted) -> None:
    toy, _, _ = planted
    assert [path for path in toy.folder.rglob("*") if path.name.startswith("owned")] == []
    pages = [*(toy.folder / "reports").rglob("*.html"), *(toy.folder / "results").rglob("*.html")]
    assert len(pages) >= 2
    assert any("touch owned" in page.read_text() for page in pages), "the title is shown"
    assert [page for page in pages if '<script>alert("owned")' in page.read_text()] == []
    assert all("Content-Security-Policy" in page.read_text() for page in pages)


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """Every node of every module of the package."""
    return [(path, node) for path in PACKAGE for node in ast.walk(ast.parse(path.read_text()))]


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Every call in the package: (file:line, the called name as written, the call)."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.func), node)
        for path, node in nodes()
        if isinstance(node, ast.Call)
    ]


def keywords(call: ast.Call) -> dict[str | None, str]:
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


RUNS_TEXT = re.compile(r"^(os\.(system|popen|spawn\w*|exec[lv]p?)|subprocess\.(getoutput|getstatusoutput)|eval|exec)$")
UNPICKLES = re.compile(r"^(pickle|cPickle|dill|marshal|shelve|joblib)\.(?!dumps$)")


def test_no_call_of_the_package_runs_text_or_a_shell() -> None:
    found = calls()
    assert sum(name.startswith("subprocess.") for _, name, _ in found) > 20, "there are calls to look at"
    assert [where for where, name, _ in found if RUNS_TEXT.match(name)] == []
    assert [where for where, _, call in found if keywords(call).get("shell", "False") != "False"] == []
    by_shell = re.compile(r"""\[\s*['"](/\S*/)?(ba|da|z|k)?sh['"]\s*,\s*['"]-\w*c""")
    assert [str(path) for path in PACKAGE if by_shell.search(path.read_text())] == []


def test_rules_hand_keys_to_the_shell_and_nothing_of_a_config() -> None:
    allowed = {
        "log:q",
        "wildcards.key",  # 12 hex digits, by its constraint
        "wildcards.part",  # digits, by its constraint
        "params.round",  # a number
        "params.shown",  # 0 or 1
        "params.cells",  # keys
        "params.pairs",  # keys
        "params.sessions:q",
    }
    shell = re.compile(r"""^    shell:\s+((?:\s*(?:'[^'\n]*'|"[^"\n]*"))+)$|\bshell\('([^'\n]*)'\)""", re.MULTILINE)
    commands = [command for path in RULES for command in shell.findall(path.read_text())]
    shells = sum(len(re.findall(r"\bshell\b\s*[:(]", path.read_text())) for path in RULES)
    assert len(commands) == shells > 10, "every command was understood"
    filled_in = [re.sub(r"{{.*?}}", "", part) for pair in commands for part in pair]  # {{x}} is the shell's own {x}
    handed = {name for part in filled_in for name in re.findall(r"{([^}]*)}", part)}
    parts = (each for s in STAGES.values() for each in (s.files, s.beside, s.needs, s.older, ["parts"]))
    files = {label for part in parts for label in part}
    allowed |= {f"{source}.{label}:q" for source in ("params", "output") for label in files}
    assert handed <= allowed and "output.record:q" in handed
    common = (ROOT / "workflow" / "rules" / "common.smk").read_text()
    assert "wildcard_constraints:\n    **WILDCARDS,\n" in common
    assert (WILDCARDS["key"], WILDCARDS["part"]) == ("[0-9a-f]{12}", "[0-9]+")
    assert [
        path.name for path in RULES if re.search(r"^    (run|script|notebook):", path.read_text(), re.MULTILINE)
    ] == []


def test_yaml_is_read_by_safe_loaders_only() -> None:
    found = [(where, name, keywords(call)) for where, name, call in calls() if name.startswith("yaml.")]
    loads = [(where, name, given) for where, name, given in found if "load" in name]
    assert len(loads) >= 5
    assert [where for where, name, given in loads if name not in ("yaml.safe_load", "yaml.load")] == []
    safe = ("_Loader", "yaml.CSafeLoader")  # the first is a kind of the second
    assert [where for where, name, given in loads if name == "yaml.load" and given.get("Loader") not in safe] == []
    assert issubclass(config._Loader, yaml.CSafeLoader)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system [touch owned]", "!!python/name:os.system", "!own x"])
def test_a_config_can_not_make_objects(tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(f"a: {tag}\n")
    with pytest.raises(ConfigError, match=r"x\.yaml: not valid YAML: .*constructor"):
        config.read_yaml(tmp_path / "x.yaml")
    assert not (tmp_path / "owned").exists()


def test_nothing_is_ever_unpickled_from_a_file() -> None:
    assert [where for where, name, _ in calls() if UNPICKLES.match(name)] == []
    assert [where for where, _, call in calls() if keywords(call).get("allow_pickle", "False") != "False"] == []


# Where servers listen


def test_only_the_inside_of_a_container_is_told_to_listen_everywhere() -> None:
    everywhere = [
        f"{path.relative_to(ROOT / 'src' / 'anncestry')}"
        for path, node in nodes()
        if isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::", "*:0")
    ]
    assert everywhere == ["runtimes/docker.py"]


# What was fetched


def zipped(path: Path, name: str, mode: int, body: bytes = b"/etc/passwd") -> Path:
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, mode << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("first", b"whole")
        archive.writestr(member, body)
    return path


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_a_zip_with_a_link_a_device_or_a_pipe_is_refused_whole(kind: int, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "x.whl", "lib/a", kind | 0o777)
    with pytest.raises(DataError, match=r"x\.whl: its member 'lib/a' is not a plain file"):
        unpack(archive, tmp_path / "to")
    assert not (tmp_path / "to" / "first").exists()


@pytest.mark.parametrize("name", ["/etc/owned", "../owned", "a/../../owned", "a\\..\\..\\owned"])
def test_a_zip_with_a_name_that_leads_out_is_refused_whole(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="points outside of the archive"):
        unpack(zipped(tmp_path / "x.whl", name, stat.S_IFREG | 0o644), tmp_path / "to")
    assert not (tmp_path / "to" / "first").exists()
    assert list(tmp_path.rglob("owned")) == []


def test_a_zip_that_unpacks_to_far_more_than_any_program_is_refused_before_it_does(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.whl", "tool", stat.S_IFREG | 0o644)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(100 << 20))
    with pytest.raises(DataError, match=r"x\.whl: 1048\d+ bytes from \d+ exceed the allowed ratio"):
        unpack(path, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_zip_never_makes_files_that_run_as_their_owner(tmp_path: Path) -> None:
    unpack(zipped(tmp_path / "x.whl", "tool", stat.S_IFREG | 0o6755, b"#!"), tmp_path / "to")
    assert stat.S_IMODE((tmp_path / "to" / "tool").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("name", "kind", "leads_to"),
    [
        ("a", tarfile.SYMTYPE, "/etc/passwd"),
        ("a", tarfile.LNKTYPE, "../../etc/passwd"),
        ("a", tarfile.CHRTYPE, ""),
        ("a", tarfile.BLKTYPE, ""),
        ("a", tarfile.FIFOTYPE, ""),
        ("/a", tarfile.REGTYPE, ""),
        ("../a", tarfile.REGTYPE, ""),
    ],
)
def test_a_tar_gives_plain_files_within_its_folder_and_nothing_else(
    name: str, kind: bytes, leads_to: str, tmp_path: Path
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, leads_to
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(member)
    with pytest.raises(DataError, match=r"x\.tar: .*(is not a plain file|points outside of the archive)"):
        fetching.extract(tmp_path / "x.tar", {name: 1 << 20}, tmp_path / "to")
    assert [path for path in tmp_path.rglob("*") if path.name not in ("x.tar", "to")] == []


# Pins


LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
ENVS = sorted(f"envs/{path.name}" for path in ROOT.glob("envs/*.txt"))


@pytest.mark.parametrize("name", LOCKS + ENVS)
def test_every_package_of_an_environment_has_a_hash_and_names_no_host(name: str) -> None:
    """Finding 11: envs/vectordbbench.txt had no hashes."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    packages = re.split(r"\n(?=\S)", "\n".join(lines).replace("\\\n", " ").strip())
    assert len(packages) > 10  # the smallest, an old client alone, has 12
    hashed = re.compile(r"\S+==\S+ +(;[^#]*?)?(--hash=sha256:[0-9a-f]{64} *)+")
    assert [package for package in packages if not hashed.fullmatch(package)] == []
    assert not re.search(r"//|\bindex\b", "".join(packages))


def test_pip_is_never_called_without_hashes() -> None:
    """Finding 11: setuptools, wheel and packaging were fetched by no hash, and run."""
    said = subprocess.run(
        ["make", "--always-make", "--dry-run", "env", "cluster"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    calls = [line for line in said.stdout.splitlines() if "pip " in line]
    assert len(calls) == 4
    for call in calls:
        assert "--no-index --no-deps" in call or "--require-hashes --only-binary :all:" in call
        assert "--no-build-isolation" in call or "--no-binary" not in call
    callers = [path for path in PACKAGE if '"pip"' in path.read_text()]
    assert [path.name for path in callers] == ["registries.py"]
    assert callers[0].read_text().count('"pip"') == 1
    assert '"pip", *arguments, *held' in callers[0].read_text() and '"--require-hashes"' in callers[0].read_text()


def test_what_has_no_wheel_is_built_by_what_the_lock_names() -> None:
    made = (ROOT / "Makefile").read_text()
    built = re.search(r"--no-binary (\S+) --no-build-isolation", made)
    assert built
    lock = (ROOT / "requirements.lock").read_text()
    assert all(re.search(rf"^{name}==", lock, re.M) for name in [*built[1].split(","), "setuptools"])


def test_every_system_is_pinned_by_a_digest() -> None:
    systems = config.read_yaml(ROOT / "config" / "systems.yaml")
    artifacts = {name: entry["artifact"] for name, entry in systems.items() if "artifact" in entry}
    assert len(artifacts) >= 4
    digest = re.compile(r"[0-9a-f]{64}|[A-Za-z0-9+/]{43}=")
    loose = [
        name for name, artifact in artifacts.items() if artifact["kind"] != "none" and not digest.search(str(artifact))
    ]
    assert loose == []


# Text


def test_a_trailing_newline_is_no_part_of_a_name_or_digest():
    """Finding 14: Python's `$` lets a newline follow; both libraries that are asked now agree that it does not."""
    body = {"x": {"type": "string", "pattern": "^[a-z]+$"}}
    schema = Schema({"type": "object", "properties": body, "propertyNames": {"pattern": "^[a-z]$"}})
    assert schema.errors({"x": "ok"}) == []
    assert schema.errors({"x": "ok\n"}) and schema.errors({"x\n": "ok"})
    assert not schema._quick.is_valid({"x": "ok\n"})


@pytest.mark.parametrize("file", sorted((ROOT / "workflow" / "schemas").glob("*.yaml")), ids=lambda path: path.name)
def test_every_pattern_of_every_schema_refuses_what_it_accepts_with_a_newline_after_it(file):
    """Where a pattern says how a text ends; asked of both libraries. Editors read `$` so by their own dialect."""
    text = {
        "0123456789abcdef" * 4,
        "name",
        "1.0",
        "A",
        "x.jsonl",
        "image@sha256:" + "0" * 64,
        "a:b:c",
        "/x",
        "a/b",
        "pool/x.deb",
    }
    text |= {"1.0.0", "py3-none-any", "-x=1", "https://x", "0123abcd", "h1:" + "A" * 43 + "=", "A" * 43 + "="}
    found = set(re.findall(r'pattern: "((?:[^"\\]|\\.)*)"', file.read_text()))
    for pattern in found:
        schema = Schema({"type": "string", "pattern": pattern.replace("\\\\", "\\")})
        good = [one for one in text if not schema.errors(one)]
        assert good, pattern
        if pattern.endswith("$"):
            assert all(schema.errors(one + "\n") and not schema._quick.is_valid(one + "\n") for one in good), pattern


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"), ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"), ("@SUM(1)", "'@SUM(1)"),
        ("-2+3", "'-2+3"), ("\tx", "'\tx"), ("plain", "plain"), ("-12 %", "-12 %"), ("+3.5", "+3.5"), (-1.5, -1.5),
        (None, None),
    ],
)  # fmt: skip
def test_no_text_in_a_csv_is_a_formula_and_numbers_stay_numbers(cell, written):
    """Finding 14: cells may have begun with `=`."""
    frame = pd.DataFrame({"cell": pd.Series([cell], dtype=object), "number": [-1.5]})
    assert numbers.inert(frame)["cell"][0] == written or cell is None
    assert numbers.inert(frame)["number"][0] == -1.5


def test_what_is_unpacked_has_no_privileges(tmp_path):
    """Finding 14: packages of Debian kept set-user-id."""
    for name, mode in (("su", 0o4755), ("sg", 0o2755), ("plain", 0o644)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "link").symlink_to("su")
    user_cache.without_privileges(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.lstat().st_mode & 0o7000]
    assert (tmp_path / "su").stat().st_mode & 0o777 == 0o755


def test_an_artifact_has_no_privileges_whatever_its_package_says(tmp_path, monkeypatch):
    def maker(system, version, artifact, files, cache):
        (files / "su").touch()
        (files / "su").chmod(0o4755)
        return {}

    monkeypatch.setitem(artifacts._MAKERS, "debian", maker)
    spec = {"system": "x", "version": "1", "artifact": {"kind": "debian"}}
    artifacts.run(spec, tmp_path / "out", tmp_path / "cache", "0123456789ab")
    assert (tmp_path / "out" / "su").stat().st_mode & 0o7777 == 0o755


# Places


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    """Finding 14: Path.home() raised."""

    def nobody(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="no home folder: set HOME, or XDG_CACHE_HOME"):
        user_cache.folder()


def test_a_folder_whose_name_holds_a_newline_is_refused_in_a_sentence(tmp_path):
    """Finding 14: Snakemake's parser failed somewhere in it."""
    toy = Toy.make(tmp_path / "a\nb")
    refused = toy.snakemake("-n", check=False)
    said = refused.stdout + refused.stderr
    assert refused.returncode and "Traceback" not in said
    assert "can't be worked in: rename it" in said


def test_a_folder_of_another_user_is_said_to_be_that(tmp_path):
    """Finding 14: a second user in the folder met a traceback. Root, too, is held by modes here."""
    toy = Toy.make(tmp_path / "toy")
    (tmp_path / "toy" / ".snakemake").mkdir()
    (tmp_path / "toy" / ".snakemake" / "anncestry-run").touch(mode=0o444)
    done = subprocess.run(
        toy.command(),
        env=toy.environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(24, 1, 0, 0, 0),  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    )
    assert done.returncode and "Traceback" not in done.stderr
    assert "anncestry-run: no permission to do this here: change its owner or mode" in done.stderr, done.stderr


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
@pytest.mark.parametrize("file", ["config", "workloads", "systems", "topologies", "platforms", "datasets", "epochs"])
def test_what_is_no_number_is_refused_in_every_config_file(tmp_path, file, value):
    """Finding 14: .inf and .nan ended in tracebacks."""
    toy = Toy.make(tmp_path)
    path = tmp_path / "config" / f"{file}.yaml"
    path.write_text(path.read_text() + f"\nextra: {{deep: [{value}]}}\n")
    with pytest.raises(ConfigError, match=rf"{file}\.yaml: -?(inf|nan) is not a finite number"):
        config.load(toy.folder / "config")


@pytest.mark.parametrize(
    ("value", "kind"), [("2024-01-01", "date"), ("!!binary aGk=", "bytes"), ("!!set {a, b}", "set")]
)
def test_what_json_does_not_have_is_refused_in_every_config_file(tmp_path, value, kind):
    toy = Toy.make(tmp_path)
    path = tmp_path / "config" / "systems.yaml"
    path.write_text(path.read_text() + f"\nextra: {{deep: {value}}}\n")
    with pytest.raises(ConfigError, match=rf"systems\.yaml: .* is read as a {kind}: quote it"):
        config.load(toy.folder / "config")


@pytest.mark.parametrize("file", ["parts", "storage", "config", "experiments/x"])
def test_a_folder_in_the_place_of_a_config_file_is_named(tmp_path, file):
    """Finding 14: a folder named parts.yaml was a traceback."""
    toy = Toy.make(tmp_path)
    path = tmp_path / "config" / f"{file}.yaml"
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"can't be read \(Is a directory\)"):
        config.load(toy.folder / "config", *(["x"] if "/" in file else []))
