"""What several tests need lies in `tests/builders` or beside it: no test is a library of another."""

from __future__ import annotations

import re

from tests.toy import ROOT

IMPORT = re.compile(
    r"^\s*(?:from|import)\s+(?:tests)?\.[\w.]*\btest_\w+|^\s*from\s+tests[\w.]*\s+import\s+.*\btest_", re.M
)


def test_no_test_module_is_imported_by_another_file() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 80
    imports = {file.name: IMPORT.findall(file.read_text(encoding="utf-8")) for file in files}
    assert {name: lines for name, lines in imports.items() if lines} == {}
    assert IMPORT.search("    from tests.report.test_page import World") and IMPORT.search("import tests.test_page")
