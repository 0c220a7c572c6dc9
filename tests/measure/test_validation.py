"""What docs/validation.md says is so here, too: what is done to server or client shows in the figures."""

from __future__ import annotations

import re

import pytest

from anncestry.drive.driver import KINDS, Driver
from tests.bench import validation
from tests.toy import ROOT


@pytest.mark.parametrize("check", validation.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_to_server_or_client_shows_in_the_figures(kind, check, tmp_path):
    with Driver(kind) as driver:
        for found in check(driver, tmp_path, 3.0):
            assert found.holds, f"{found.done}: {found.shown}"


def test_the_page_has_a_row_for_everything_that_is_done_with_either_driver():
    page = (ROOT / "docs" / "validation.md").read_text()
    rows = re.findall(r"^\| (native|python) \| (.+?) \| (.+?) \| (\w+) \|$", page, re.MULTILINE)
    assert {(driver, said) for driver, _, _, said in rows} == {(kind, "yes") for kind in KINDS}
    for words in ("a stall of 1 s, open loop", "the same stall, closed loop", "5 % errors", "the client stopped"):
        assert {driver for driver, done, _, _ in rows if done.startswith(words)} == set(KINDS), words
