"""No attempt vanishes: a ledger has every start, crash, repeated run and drop; records quote it, verify checks it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from anncestry import cli
from anncestry.cells.spec import Disturbance
from anncestry.errors import Damaged, ServerError
from anncestry.measure import session
from anncestry.provenance import prune, records
from anncestry.provenance.attempts import Ledger, count, lines_of, words
from anncestry.report.site.page import write_page
from tests.builders.world import World

NONE = {"starts": 0, "died": 0, "repeated": 0, "restarts": 0, "dropped": 0}


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "attempts" / "load@1")
    for number in range(4):
        ledger.add("start", stage="session", session=str(number), queries=["q"])
        ledger.add("end", failed={}, restarts=[])
    return ledger


def own(ledger: Ledger) -> Path:
    return ledger.file(ledger.own)


def events(ledger: Ledger) -> list[str]:
    return [line["event"] for line in ledger.lines()]


def start(*queries: str) -> dict:
    return {"event": "start", "stage": "session", "queries": queries}


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        ([], {}),
        ([start("q")], {"starts": 1}),  # may be at work
        ([start("q"), start("q")], {"starts": 2, "died": 1}),  # killed
        ([start("other"), start("q")], {"starts": 1}),
        ([start("q"), {"event": "died"}, start("other"), {"event": "died"}], {"starts": 1, "died": 1}),
        ([start("q"), {"event": "end", "failed": {"q": "gone"}}], {"starts": 1, "died": 1}),
        ([start("q"), {"event": "end", "restarts": ["etcd"]}], {"starts": 1, "restarts": 1}),
        ([start("q"), {"event": "end", "failed": {"other": "gone"}}], {"starts": 1}),
        ([{"event": "repeat", "query": "q"}, {"event": "repeat", "query": "other"}], {"repeated": 1}),
        ([{"event": "drop", "load": False, "queries": ["q"]}, {"event": "drop", "load": True}], {"dropped": 2}),
        ([{"event": "start", "stage": "load"}, start("q")], {"starts": 1}),
    ],
)  # fmt: skip
def test_what_was_attempted_is_counted_for_each_query(lines, counted):
    assert count(lines, "q") == {**NONE, **counted}


def test_the_load_has_its_own_count():
    lines = [{"event": "start", "stage": "load"}, {"event": "start", "stage": "load"}, {"event": "end"}, start("q")]
    assert count(lines) == {**NONE, "starts": 2, "died": 1}
    assert count([*lines, {"event": "drop", "load": True, "queries": ["q"]}])["dropped"] == 1
    assert words(count(lines)) == "1 of 2 starts died"


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0].replace(b"session", b"SESSION"), *lines[1:]],
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: [*lines[:2], lines[1], *lines[2:]],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [b"not a line\n", *lines],
    ],
    ids=["changed", "taken out", "put in", "exchanged", "no line"],
)
def test_a_line_that_is_changed_taken_out_or_put_in_breaks_the_chain(ledger, change):
    lines = own(ledger).read_bytes().splitlines(keepends=True)
    own(ledger).write_bytes(b"".join(change(lines)))
    with pytest.raises(Damaged, match=rf"load@1/{ledger.own}\.jsonl: line"):
        ledger.lines()


def test_a_quoted_ledger_can_grow_but_not_be_cut_off_or_made_anew(ledger):
    quoted = ledger.quote("q")["attempts"]
    end = {"lines": 8, "sha256": ledger.read()[ledger.own][-1][1]}
    assert quoted == {**NONE, "starts": 4, "files": {ledger.own: end}}
    ledger.add("drop", load=False, queries=["q"])
    Ledger(ledger.path).add("start", stage="session", queries=["q"])
    ledger.check(quoted, "q")
    with pytest.raises(Damaged, match="other attempts than the record"):
        ledger.check({**quoted, "died": 1}, "q")
    lines = own(ledger).read_bytes().splitlines(keepends=True)
    own(ledger).write_bytes(b"".join(lines[:6]))
    with pytest.raises(Damaged, match="does not hold the 8 lines"):
        ledger.check(quoted, "q")
    own(ledger).unlink()
    with pytest.raises(Damaged, match="does not hold the 8 lines"):
        ledger.check(quoted, "q")


def test_a_ledger_of_one_file_and_the_records_that_quote_it_stay_good_beside_the_files_of_later_sessions(ledger):
    old = own(ledger).rename(ledger.path.with_name("load@1.jsonl"))
    quoted = {**NONE, "starts": 4, "lines": 8, "sha256": lines_of(old)[-1][1]}
    ledger.check(quoted, "q")
    ledger.add("start", stage="session", queries=["q"])
    ledger.check(quoted, "q")
    later = ledger.quote("q")["attempts"]
    assert later["starts"] == 5 and later["files"].keys() == {"", ledger.own}
    ledger.check(later, "q")


def test_ledgers_of_two_branches_lie_side_by_side_when_they_are_merged(ledger, tmp_path):
    """What cp -rn does with them, whichever is merged into the other, and where a session of one was killed."""
    theirs = tmp_path / "theirs"
    shutil.copytree(ledger.path, theirs)
    mine, other = Ledger(ledger.path), Ledger(theirs)
    mine.add("start", stage="session", queries=["q"])  # and is killed
    Ledger(ledger.path).add("start", stage="session", queries=["q"])
    with pytest.raises(ServerError), other.attempt(stage="session", queries=["q"]):
        raise ServerError("gone")
    quoted = [Ledger(folder).quote("q")["attempts"] for folder in (ledger.path, theirs)]
    assert [(each["starts"], each["died"]) for each in quoted] == [(6, 1), (5, 1)]
    for file in Ledger(theirs).files():
        if not (merged := ledger.path / file.name).exists():
            shutil.copy2(file, merged)
    for each in quoted:
        ledger.check(each, "q")
    both = ledger.quote("q")["attempts"]
    assert (both["starts"], both["died"]) == (7, 3), "each of the three was followed by another start, or died"
    ledger.check(both, "q")


def test_a_line_that_a_power_cut_tore_tells_of_nothing_and_is_cut_off_by_the_next(ledger):
    whole, before = own(ledger).read_bytes(), ledger.lines()
    own(ledger).write_bytes(whole + b'{"at": "2026-')
    assert ledger.lines() == before and Ledger(ledger.path).quote("q"), "a later session has a file of its own"
    ledger.add("drop", load=True, queries=[])
    assert own(ledger).read_bytes().startswith(whole)
    assert events(ledger)[-2:] == ["end", "drop"]


def test_a_session_that_died_and_one_whose_server_did_are_quoted_by_the_record_of_the_third(bench, monkeypatch):
    honest = bench()
    _, _, cell = honest.matrix.cells  # one run
    assert honest.load(cell)["attempts"]["starts"] == 1
    with monkeypatch.context() as patch:
        patch.setattr(session.ServerSession, "prepare", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            honest.query(cell)
    with monkeypatch.context() as patch:

        def gone(self, run):
            raise ServerError("the server is gone")

        patch.setattr(session.ServerSession, "measure", gone)
        assert honest.query(cell) == {cell.query: "the server is gone"}
    assert Ledger.of(honest.matrix.spec(cell.query, "query"), cell.load).failure(cell.query) == (
        "2 of 2 starts died; the last: the server is gone"
    )
    assert honest.query(cell, disturbance=Disturbance.of(others_pct=-1, repeats=1)) == {cell.query: "ok"}
    attempts = honest.publish(cell)["attempts"]
    ledger = Ledger.of(honest.matrix.spec(cell.query, "query"), cell.load)
    assert events(ledger) == ["start", "end", "start", "died", "start", "end", "start", "repeat", "end"]
    assert {name: attempts[name] for name in NONE} == {**NONE, "starts": 3, "died": 2, "repeated": 1}
    assert words(attempts) == "2 of 3 starts died, measured again as it was disturbed 1 time"
    ledger.check(attempts, cell.query)
    assert ledger.failure(cell.query) == "", "the last start ended well"


def test_a_cell_whose_every_start_died_is_shown_as_failed_with_its_attempts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World({"blobs": ("l2", 1000, 8)})
    tried, at_work, *_ = world.cells
    for cell in (tried, at_work):
        Path(cell["query_path"]).unlink()
        Path(cell["recall_path"]).unlink()
    spec = {axis: {"name": tried[axis]} for axis in ("dataset", "system", "topology")}
    load, *queries = (
        Path(path).stem.rpartition("@")[2]
        for path in (tried["load_path"], *(c["query_path"] for c in (tried, at_work)))
    )
    ledger = Ledger.of(spec, load)
    with ledger.attempt(stage="session", queries=queries[:1]) as ending:
        ending["failed"] = {queries[0]: "no answer"}
    with pytest.raises(ServerError), ledger.attempt(stage="session", queries=queries[:1]):
        raise ServerError("out of <memory>")
    ledger.add("start", stage="session", queries=queries[1:])

    df = world.tidy()
    rows = df[(df["metric"] == "qps") & (df["system"] == tried["system"])].set_index("workload")
    assert rows["reason"][tried["workload"]] == "failed: 2 of 2 starts died; the last: out of <memory>"
    assert rows["reason"][at_work["workload"]] == "not measured"
    write_page(df, Path("page"), title="T")
    cells, index = (Path("page", name).read_text() for name in ("cells.html", "index.html"))
    assert f"{len(world.cells) - 2} valid, 0 invalid, 1 failed, 1 not measured" in cells
    assert all("2 of 2 starts died; the last: out of &lt;memory&gt;" in page for page in (cells, index))


def test_a_load_that_died_is_quoted_by_the_next(bench):
    liar = bench("die-on-load")
    cell = liar.matrix.cells[0]
    with pytest.raises(ServerError):
        liar.load(cell)
    liar.toy.files["systems"]["blue-1.0"]["settings"] = {}
    ledger = Ledger.of(liar.matrix.spec(cell.load, "load"), cell.load)
    assert events(ledger) == ["start", "died"]
    assert "out of memory" in ledger.lines()[-1]["why"]


def test_the_workflow_quotes_its_attempts_on_the_page_and_verify_checks_them(
    finished_place, tmp_path, monkeypatch, capfd
):
    toy = finished_place.copy(tmp_path / "toy", "data", "results", "scratch")
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    (folder,) = Path("results/attempts").glob("*/*/*")
    ledger = Ledger(folder)
    file = ledger.files()[-1]
    assert events(ledger) == ["start", "end"] * 3  # a load, two rounds
    (page,) = Path("results/report").glob("*/cells.html")
    assert "load: 1 start; query: 2 starts" in page.read_text()
    assert cli.main(["verify"]) == 0

    whole = file.read_bytes()
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    capfd.readouterr()
    assert cli.main(["verify"]) == 2
    assert f"{file}: does not hold the 2 lines that a record quotes" in capfd.readouterr().err
    file.write_bytes(whole)
    (victim,) = Path("results/query").rglob("k5@*.json")
    body = json.loads(victim.read_text())
    body["attempts"]["starts"] = 1
    before = victim.read_bytes()
    records.write_json(victim, records.seal(body))
    assert cli.main(["verify"]) == 2
    assert f"{folder}: says other attempts than the record that quotes it" in capfd.readouterr().err
    victim.write_bytes(before)

    assert cli.main(["drop", "*/*/*/k5", "--yes"]) == 0
    dropped = ledger.lines()[-1]
    assert (dropped["event"], dropped["load"], len(dropped["queries"])) == ("drop", False, 1)
    toy.snakemake()
    (again,) = Path("results/query").rglob("k5@*.json")
    assert json.loads(again.read_text())["attempts"]["dropped"] == 1
    assert cli.main(["verify"]) == 0


def test_what_was_never_measured_is_not_dropped(bench):
    honest = bench()
    assert prune.drop(honest.matrix, ["*/*/*/k7"]).drops == {}
