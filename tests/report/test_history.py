"""What a history promises: of kept nights each planted change and no other, and lines that end where they must."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry import cli
from anncestry.errors import DataError
from anncestry.provenance.versioning import Revisions
from anncestry.report import charts, diffs
from anncestry.report.history import changes, figures, text
from anncestry.report.history.lines import History, Line, of_commits
from anncestry.report.model import numbers
from anncestry.report.site import history_page
from tests.builders.world import World, made_invalid, parsed, sha256, unpacked
from tests.toy import ROOT

MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"
WORKLOAD, NIGHTS, NOISE = "k10", 30, 0.01
PLANTED: dict[tuple[str, str], tuple[int, float]] = {
    (MILVUS, "p50_ms"): (10, 1.12),
    (WEAVIATE, "server_cpu_us_per_query"): (16, 1.15),
    (WEAVIATE, "qps"): (22, 0.9),
}
"""From this night on a number of this system is so many times what it was."""
Night = Callable[[int, dict[str, Any]], None]


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody's own settings of git and DVC."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR", "XDG_CACHE_HOME"):
            patch.setenv(name, str(home / name))
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "tester")
            patch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")
        patch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        yield


class Repository:
    """A repository of nights: each measures both systems anew, and keeps that by DVC and git."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        patch.chdir(folder)
        shutil.copytree(ROOT / ".dvc", ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local"))
        Path(".gitignore").write_text("/results\n/scratch\n")
        self._git("init", "--quiet", "--initial-branch", "main")
        self._git("add", ".dvc", ".gitignore")
        self._git("commit", "--quiet", "--message", "A folder of nights")
        self._world = World({"random-xs-20-angular": ("cosine", 9000, 20)})
        self._cells = [cell for cell in self._world.cells if cell["workload"] == WORKLOAD]
        named = {path for cell in self._cells for name, path in cell.items() if name.endswith("_path")}
        for path in {str(path) for path in Path("results").rglob("*.json")} - named:
            Path(path).unlink()
        self._records = {path: json.loads(Path(path).read_text()) for path in sorted(named)}
        self._random = np.random.default_rng(21)

    def night(self, number: int, edit: Night | None = None) -> None:
        """Measure and keep; `edit` changes each record of a load or query after the noise of the night."""
        for cell in self._cells:
            for stage in ("load", "query", "recall"):
                self._measure(cell[f"{stage}_path"], number, edit)
        self.keep(number)

    def _measure(self, path: str, number: int, edit: Night | None) -> None:
        record = json.loads(json.dumps(self._records[path]))
        record["created"] = f"2026-10-{number + 1:02}T02:30:00+00:00"
        if record["stage"] == "query":
            for name in ("p50_ms", "p95_ms", "p99_ms", "qps"):
                _scale(record["summary"][name], 1 + NOISE * self._random.normal())
            _scale(record["server_cpu_us_per_query"], 1 + NOISE * self._random.normal())
        elif record["stage"] == "recall":
            record["inputs"]["query"]["sha256"] = sha256(record["inputs"]["query"]["path"])
        if edit is not None:
            edit(number, record)
        self._world.write(path, record)

    def keep(self, number: int) -> None:
        """What `anncestry keep` does, without the workflow that it asks."""
        from dvc.repo import Repo

        frame = numbers.tidy(self._cells)
        numbers.write(frame, Path("results/table/default@aaaaaaaaaaaa"))
        diffs.write(frame, "default", Path("results"))
        with Repo(".") as repository:
            repository.add(["results"])
        self._git("add", "--force", "results.dvc")
        at = f"2026-10-{number + 1:02}T04:00:00+00:00"
        self._git("commit", "--quiet", "--message", f"Night {number + 1}", at=at)

    @staticmethod
    def _git(*arguments: str, at: str = "") -> None:
        dates = {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at} if at else {}
        subprocess.run(["git", *arguments], check=True, env={**os.environ, **dates})


def _scale(entry: dict[str, Any], factor: float) -> None:
    entry.update({name: entry[name] * factor for name in ("value", "std", "low", "high")})
    entry["runs"] = [run * factor for run in entry["runs"]]


def planted(number: int, record: dict[str, Any]) -> None:
    for (system, metric), (since, factor) in PLANTED.items():
        if record["stage"] == "query" and record["spec"]["system"]["name"] == system and number >= since:
            _scale(_entry(record, metric), factor)


def _entry(record: dict[str, Any], metric: str) -> dict[str, Any]:
    found: dict[str, Any] = record["summary"].get(metric) or record[metric]
    return found


def history(chosen: Mapping[str, str] | None = None, since: str = "") -> History:
    return of_commits(Revisions(Path()), "default", chosen or {}, since)


def line(found: History, system: str, metric: str) -> Line:
    (one,) = [each for each in found.lines if (each.name[3], each.name[-1]) == (system, metric)]
    return one


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty nights with three planted changes; not to be changed by a test."""
    folder = tmp_path_factory.mktemp("planted") / "checkout"
    with pytest.MonkeyPatch.context() as patch:
        repository = Repository(folder, patch)
        for number in range(NIGHTS):
            repository.night(number, planted)
    return folder


def test_of_thirty_nights_the_three_planted_changes_are_told_and_no_other(
    nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nights)
    found = history()
    assert len(found.commits) == NIGHTS and not found.left_out
    told = {
        (each.name[3], each.name[-1]): (change.place, change.ratio) for each in found.lines for change in each.changes
    }
    assert told == {key: (since, pytest.approx(factor, abs=0.02)) for key, (since, factor) in PLANTED.items()}
    assert not any(each.breaks for each in found.lines)
    assert {change.said for each in found.lines for change in each.changes} == {"slower", "more"}
    p50 = line(found, MILVUS, "p50_ms")
    assert len(p50.points) == NIGHTS and p50.points[0].commit.subject == "Night 1"
    assert p50.points[-1].commit.at == "2026-10-30T04:00:00+00:00"


def test_each_phase_of_a_load_has_a_line_and_a_panel_of_its_own(nights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nights)
    found = history({"metric": "rss_peak_mib", "system": MILVUS})
    said = [text.quantity(each) for each in found.lines if not each.name[2]]
    assert sorted(said) == ["rss_peak_mib (MiB)", "rss_peak_mib (MiB), insert"]
    (figure,) = figures.figures(found, charts.colours({MILVUS}), lambda point: str(point.row["number_id"]))
    assert len({panel.heading for panel in figure.panels}) == len(found.lines) > 2


def test_the_command_tells_the_same_as_text_as_json_and_on_a_page(
    nights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(nights)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(ROOT / "config"))
    assert cli.main(["history", "--system", MILVUS, "--out", str(tmp_path / "page")]) == 0
    said = capsys.readouterr().out
    assert "of default over 30 commits, 2026-10-01 to 2026-10-30: 1 change, 0 breaks." in said
    assert (
        "2026-10-11" in said
        and "p50_ms (ms)" in said
        and "slower" in said
        and f"page: {tmp_path / 'page' / 'index.html'}" in said
    )
    assert cli.main(["history", "--system", MILVUS, "--metric", "p50_ms", "--json"]) == 0
    (plain,) = json.loads(capsys.readouterr().out)["lines"]
    (change,) = plain["changes"]
    assert change["at"] == "2026-10-11T04:00:00+00:00" and plain["system"] == MILVUS
    point = plain["points"][PLANTED[MILVUS, "p50_ms"][0]]
    assert point["commit"] == change["commit"] and point["why"] == f"anncestry why {point['number_id']}"
    assert point["number_id"] in said and point["low"] < point["value"] < point["high"]
    page = unpacked((tmp_path / "page" / "index.html").read_text())
    assert parsed(page)
    # Measured again under its key a number keeps its id: on the page each night has one of its own.
    assert f'"{point["number_id"]}-{point["commit"][:8]}"' in page and point["record_sha256"] in page
    assert json.loads((tmp_path / "page" / "history.json").read_text())["experiment"] == "default"


def test_only_what_was_kept_since_a_revision_is_told(nights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nights)
    found = history({"metric": "p50_ms", "system": MILVUS}, since="HEAD~5")
    assert [len(each.points) for each in found.lines] == [5] and not found.lines[0].changes
    with pytest.raises(DataError, match="'nowhere' names no commit; branches and tags: main"):
        history(since="nowhere")
    with pytest.raises(DataError, match="no number is called so in 30 commits: milvus-9"):
        history({"system": "milvus-9"})
    with pytest.raises(DataError, match="no commit holds results of nothing"):
        of_commits(Revisions(Path()), "nothing", {})


def moved(number: int, record: dict[str, Any]) -> None:
    """Another epoch of queries, then another machine; both with another level, which is no change of the database."""
    if record["stage"] == "query":
        for since in (6, 12):
            _scale(record["summary"]["p50_ms"], 1.5 if number >= since else 1)
        record["spec"]["epoch"] = 7 if number >= 6 else 6
    if number >= 12 and record["stage"] in ("load", "query"):
        record["spec"]["platform"] = "other"
    if number == 16 and record["stage"] == "query" and record["spec"]["system"]["name"] == MILVUS:
        made_invalid(record)


def test_another_epoch_or_platform_ends_a_line_and_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "checkout", monkeypatch)
    for number in range(18):
        repository.night(number, moved)
    Path("results/remark").write_text("nothing measured anew")
    repository.keep(18)
    found = history({"metric": "p50_ms"})
    milvus, weaviate = (line(found, system, "p50_ms") for system in (MILVUS, WEAVIATE))
    assert [(each.place, each.reason) for each in weaviate.breaks] == [
        (6, "other epoch of query: 6 against 7"),
        (12, "other platform: default against other"),
    ]
    assert not milvus.changes and not weaviate.changes
    assert [len(part) for part in weaviate.segments()] == [6, 6, 6], "a record that two commits hold is one point"
    assert len(found.commits) == 19 and len(milvus.points) == 17
    ((commit, reason),) = milvus.absent
    assert commit.subject == "Night 17" and reason.startswith("row count: ")
    assert f"2026-10-07 {weaviate.points[6].commit.commit[:8]}: the line ends: other epoch" in text.summary(found)
    page = unpacked(history_page.write(found, tmp_path / "page", "moved").read_text())
    specs = json.loads(page.partition('id="data-charts">')[2].partition("</script>")[0])
    drawn = {mark["segment"] for layer in specs[0]["layer"] for mark in layer["data"]["values"]}
    assert {f"{WEAVIATE} {part}" for part in range(3)} <= drawn, "a segment each: a line never joins them"


def test_a_commit_whose_results_are_lost_is_left_out_with_its_reason(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(nights, tmp_path / "copy", ignore=shutil.ignore_patterns("scratch"))
    monkeypatch.chdir(tmp_path / "copy")
    subprocess.run(["git", "reset", "--quiet", "--hard", "HEAD~27"], check=True)
    second = Revisions(Path()).kept()[1].commit
    pointer = subprocess.run(["git", "show", f"{second}:results.dvc"], capture_output=True, text=True, check=True)
    listing = next(word for word in pointer.stdout.split() if word.endswith(".dir"))
    (Path(".dvc/cache/files/md5") / listing[:2] / listing[2:]).unlink()
    found = history()
    assert len(found.commits) == 2
    ((commit, reason),) = found.left_out
    assert commit.commit == second and "neither in DVC's cache nor on the remote" in reason
    assert f"left out: 2026-10-02 {second[:8]}: " in text.summary(found)


def test_of_lines_that_never_change_a_page_in_a_hundred_tells_a_change() -> None:
    """Twenty lines a page, thirty nights each, with normal noise and with heavy tails."""
    random = np.random.default_rng(1)
    told = 0
    for noise in (lambda: random.normal(size=NIGHTS), lambda: random.standard_t(3, size=NIGHTS)):
        told += sum(any(changes.find(list(100 + noise()), 20) for _ in range(20)) for _ in range(20))
    assert told <= 3, "of 40 pages with 1 % each, more come once in a thousand tries"


def test_a_number_that_is_the_same_every_night_has_a_change_where_it_steps_and_else_none() -> None:
    assert changes.find([4096.0] * 12, 20) == []
    (found,) = changes.find([4096.0] * 8 + [4160.0] * 4, 20)
    assert (found.place, found.before, found.after) == (8, 4096, 4160)
    assert changes.find([4096.0] * 3 + [4160.0] * 2, 1) == [], "fewer than six points"
    assert changes.find([4096.0] * 6 + [5000.0] + [4096.0] * 6, 1) == [], "one odd night"
