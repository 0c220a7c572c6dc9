"""A reader that has read enough (`anncestry plan | head -1`) ends a command quietly, as it ends other programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from anncestry import cli, workflow
from tests.toy import Toy

GONE = 128 + signal.SIGPIPE


@pytest.fixture
def toy(tmp_path, monkeypatch):
    toy = Toy.make(tmp_path)
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    monkeypatch.delenv("ANNCESTRY_EXPERIMENT", raising=False)
    return toy


def run(toy: Toy, *words: str, said: bool = True) -> tuple[int, str]:
    """A command whose standard output (with `said` false its standard error, too) is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "anncestry", *words],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE if said else writing,
            text=True,
            env=toy.environment(),
            check=False,
            timeout=900,
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize("words", [["plan"], ["plan", "--paper"], ["cells"], ["gc"]], ids=" ".join)
def test_a_command_whose_reader_has_gone_says_nothing_and_ends_like_other_programs(toy, words):
    assert run(toy, *words) == (GONE, "")


def test_the_help_whose_reader_has_gone_says_nothing(toy):
    assert run(toy, "--help") == (GONE, "")


def test_where_errors_go_to_the_same_reader_the_status_is_still_the_commands(toy):
    assert run(toy, "cells", said=False)[0] == GONE
    assert run(toy, "drop", "no-such-cell", said=False)[0] == 2, "an error of the user, not one of the interpreter"


def test_a_broken_pipe_to_something_else_is_an_error_that_is_told(toy, monkeypatch, capfd):
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError("a server's")

    monkeypatch.setattr(workflow, "resolve", broken)
    assert cli.main(["cells"]) == 1
    assert "a server's" in capfd.readouterr().err
