"""docs/architecture.md has a table of what each part of the package may import: exactly what it imports."""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.toy import ROOT

PACKAGE = "anncestry"
SOURCES = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"
Graph = dict[str, set[str]]


_parsed = cache(ast.parse)


def modules_of(sources: Path) -> dict[str, ast.Module]:
    """Dotted name → its syntax tree; a package by the name of its folder."""
    trees = {}
    for path in sorted((sources / PACKAGE).rglob("*.py")):
        parts = path.relative_to(sources).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = _parsed(path.read_text())
    return trees


def imports_of(trees: dict[str, ast.Module]) -> Graph:
    """Module → modules that it imports: at the top, in functions, and under TYPE_CHECKING.

    The last ones count as well: who names a type of another module must know that module.
    """
    graph: Graph = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names if alias.name in trees}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}:{node.lineno}: relative import: name the module in full"
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= (members & trees.keys()) or ({str(node.module)} & trees.keys())
    return graph


def parts_of(graph: Graph, package: str) -> Graph:
    """The graph of the modules and packages right below a package, each with all that lies in it."""
    parts: Graph = {}
    for name, imported in graph.items():
        if part := part_in(package, name):
            others = {part_in(package, other) for other in imported}
            parts.setdefault(part, set()).update(others - {part, ""})
    return parts


def part_in(package: str, module: str) -> str:
    return module.removeprefix(f"{package}.").partition(".")[0] if module.startswith(f"{package}.") else ""


def cycle_in(graph: Graph) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def rows_of(page: str) -> list[tuple[list[str], set[str]]]:
    """Of each row of the page's table: its units (folders or modules right below the package), and what they import."""
    table = page.partition("\n| --- | --- | --- |\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [(re.findall(r"`(\w+)", row[0]), set(re.findall(r"\w+", row[-1]))) for row in rows]


def violations_of_table(units: Graph, page: str) -> list[str]:
    """Where the imports of the units are not the table's. All may import the first row; a row may import itself."""
    rows = rows_of(page)
    known = [unit for names, _ in rows for unit in names]
    found = [f"{unit} is not in the table" for unit in units.keys() - set(known)]
    found += [f"{unit} of the table does not exist" for unit in set(known) - units.keys()]
    found += [f"{unit} is twice in the table" for unit in set(known) if known.count(unit) > 1]
    above: set[str] = set()
    for names, allowed in rows:
        imports = {(name, other) for name in names for other in units.get(name, ())}
        used = {other for _, other in imports} - set(names) - set(rows[0][0])
        found += [
            f"{name} imports {other}, which its row does not list" for name, other in imports if other in used - allowed
        ]
        found += [f"{', '.join(names)}: the row lists {other}, which they don't import" for other in allowed - used]
        found += [f"{', '.join(names)}: the row lists {other}, which is not above it" for other in allowed - above]
        above |= set(names)
    return found


def _is_look_into_engine(node: ast.AST) -> bool:
    """getattr(engine, …) or hasattr(engine, …)."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
        return False
    first = node.args[0]
    return node.func.id in ("getattr", "hasattr") and isinstance(first, ast.Name) and first.id == "engine"


def violations(sources: Path, page: str) -> list[str]:
    """What of the package is not as the page says, each as a sentence."""
    trees = modules_of(sources)
    graph = imports_of(trees)
    found = violations_of_table(parts_of(graph, PACKAGE), page)
    if cycle := cycle_in(graph):
        found.append(f"cycle of modules: {' → '.join(cycle)}")
    for package in sorted({name.rpartition(".")[0] for name in graph} - {""}):
        if cycle := cycle_in(parts_of(graph, package)):
            found.append(f"cycle in {package}: {' → '.join(cycle)}")
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                found.append(f"{name}:{node.lineno}: star import")
            if _is_look_into_engine(node):
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}: declare it in the engine's base class")
    return sorted(found)


def test_the_package_is_as_the_page_says() -> None:
    assert violations(SOURCES, PAGE.read_text()) == []


def test_case_studies_build_on_the_report_and_nothing_builds_on_them() -> None:
    trees = {path.stem: ast.parse(path.read_text()) for path in (ROOT / "casestudies").glob("*.py")}
    imported = {
        str(node.module)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE)
    }
    assert {part_in(PACKAGE, name) for name in imported} == {"errors", "home", "metrics", "report"}
    assert not [path for path in SOURCES.rglob("*.py") if "import casestudies" in path.read_text()]
    assert not [path for path in SOURCES.rglob("*.py") if "from casestudies" in path.read_text()]


PLANTED = {
    "a right that is missing": (
        "metrics/stats.py",
        "import anncestry.report.model.numbers\n",
        "metrics imports report",
    ),
    "a cycle by a function": (
        "redact.py",
        "def planted():\n    from anncestry.cli import main\n    return main\n",
        "cycle of modules: anncestry.",
    ),
    "a cycle of folders by different modules": (
        "runtimes/base.py",
        "if TYPE_CHECKING:\n    from anncestry.engines import mysql\n",
        "cycle in anncestry: ",
    ),
    "a module that no row has": ("planted.py", "", "planted is not in the table"),
    "a star import": ("measure/load.py", "from anncestry.errors import *\n", "anncestry.measure.load:"),
    "an engine looked into": ("measure/load.py", "getattr(engine, 'planted', None)\n", "getattr(engine, 'planted'"),
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sources")
    shutil.copytree(SOURCES / PACKAGE, target / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "native", "site"))
    return target


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_violation_is_found(what: str, copied: Path) -> None:
    name, text, found = PLANTED[what]
    path = copied / PACKAGE / name
    before = path.read_text() if path.exists() else None
    path.write_text((before or "") + "\n" + text)
    try:
        assert any(found in each for each in violations(copied, PAGE.read_text()))
    finally:
        path.unlink() if before is None else path.write_text(before)


def test_a_right_that_nobody_uses_and_a_row_in_the_wrong_place_are_found() -> None:
    units: Graph = {"errors": set(), "low": {"errors"}, "high": {"low"}}
    head = "| a | b | c |\n| --- | --- | --- |\n| `errors` | x | – |\n"
    low, high = "| `low/` | x | {} |\n", "| `high/` | x | {} |\n"
    assert violations_of_table(units, head + low.format("–") + high.format("low")) == []
    for rows, why in (
        (low.format("–") + high.format("low, errors"), "lists errors, which they don't import"),
        (high.format("low") + low.format("–"), "lists low, which is not above it"),
        (low.format("–") + high.format("–"), "high imports low, which its row does not list"),
    ):
        assert [why in each for each in violations_of_table(units, head + rows)] == [True], rows
