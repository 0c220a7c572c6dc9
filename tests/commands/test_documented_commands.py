"""Each complete command line of the pages, and of the comments of the config, is one that its program takes.

Looked at are code spans, listings and tables. Names in capitals (`ID`, `DIR`) stand for what a reader fills in. A bare
command names itself (`anncestry compare`), and a line with an ellipsis is no complete one.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from snakemake.cli import get_argument_parser

from anncestry import cli
from tests.toy import ROOT

FILES = sorted(
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "evidence").glob("*.md"),
        *(ROOT / "reports").glob("*.md"),
        *(ROOT / "config").rglob("*.md"),
        *(ROOT / "config").rglob("*.yaml"),
    )
)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`((?:(?!\n\s*\n)[^`])+)`(?!`)")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*")


def written(text: str, of_config: bool = False) -> Iterator[tuple[int, str]]:
    """What a reader may type by a page (or by the comments of a file of the config): the line of each, and its text."""
    if of_config:
        prose = "\n".join(line.partition("#")[2] for line in text.splitlines())
    else:
        for fenced in _FENCED.finditer(text):
            yield from enumerate(fenced[0].splitlines(), text[: fenced.start()].count("\n") + 1)
        prose = _FENCED.sub(lambda fenced: "\n" * fenced[0].count("\n"), text)
        listed = enumerate(prose.splitlines(), 1)
        yield from ((number, line) for number, line in listed if line.startswith("    ") and "`" not in line)
    for span in _SPAN.finditer(prose):
        yield prose[: span.start()].count("\n") + 1, " ".join(span[1].split())


def commands(text: str, program: str) -> Iterator[list[str]]:
    """The words behind each complete command of a program in a line that may have several commands, or none."""
    start = re.compile(rf"(?:^|&&|\|\||[;|(])\s*(?:[A-Z_]+=\S+\s+)*{program}(?=\s)")
    for found in start.finditer(text := text.replace("\\|", "|").strip()):
        rest = text[found.end() :]
        if found[0].startswith("("):
            rest = rest.partition(")")[0]
        lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set("();<>|&"):
                break
            words.append(word.rstrip("…").strip("[]") if word != "…" else word)
        if words and "…" not in words:
            yield words


def strict(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser, and all below it: no option may be shortened, and placeholders have any type."""

    def lenient(type_: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda text: text if _PLACEHOLDER.fullmatch(text) else type_(text)

    parser.allow_abbrev = False
    for action in parser._actions:
        if callable(action.type):
            action.type = lenient(action.type)
        if isinstance(action.choices, dict):
            for below in action.choices.values():
                strict(below)
    return parser


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    return {"anncestry": strict(cli.parser()), "snakemake": strict(get_argument_parser())}


def is_bare(words: list[str], parser: argparse.ArgumentParser) -> bool:
    """Whether the words name a command (or one of its kinds), for an experiment or not, and ask it nothing."""
    if words[:1] == ["--experiment"]:
        words = words[2:]
    for word in words:
        below = next((each.choices for each in parser._actions if isinstance(each.choices, dict)), {})
        if word not in below:
            return _PLACEHOLDER.fullmatch(word) is not None and bool(below)
        parser = below[word]
    return True


def refused(program: str, words: list[str]) -> str:
    """Why a program doesn't take a command line; empty if it does."""
    parser = parsers()[program]
    if is_bare([word for word in words if word != "--help"], parser):
        return ""
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        try:
            parser.parse_args(words)
        except SystemExit as end:
            return said.getvalue().splitlines()[-1] if end.code else ""
    return ""


def faults(text: str, of_config: bool = False) -> Iterator[tuple[int, str]]:
    """The line of each command that its program doesn't take, and why."""
    for line, snippet in written(text, of_config):
        for program in parsers():
            for words in commands(snippet, program):
                if why := refused(program, words):
                    yield line, f"{program} {shlex.join(words)}: {why}"


@pytest.mark.parametrize("file", FILES)
def test_a_command_of_a_page_or_of_the_config_is_one_that_its_program_takes(file: str) -> None:
    found = faults((ROOT / file).read_text(), Path(file).suffix == ".yaml")
    assert [f"{file}:{line}: {why}" for line, why in found] == []


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("Type\n`anncestry --experiment smoke\nverify --quickly`.", 2, "unrecognized arguments: --quickly"),
        ("Type\n\n    PYTHONPATH=. anncestry why ID --exact   # a number", 3, "unrecognized arguments: --exact"),
        ("```\na\nanncestry plan && anncestry sumary\n```\n", 3, "invalid choice: 'sumary'"),
        ("| a | `make all; anncestry completion ksh \\| source` |", 1, "invalid choice: 'ksh'"),
        ('    eval "$(anncestry completion bsh)"', 1, "invalid choice: 'bsh'"),
        ("    anncestry verify --qu", 1, "unrecognized arguments: --qu"),
        ("    anncestry compare A [B] [--noize PCT]", 1, "unrecognized arguments: --noize"),
        ("    anncestry compare A [B] [--noise two]", 1, "argument --noise"),
        ("    snakemake --cores 8 all --logger anncestry --keep-on", 1, "unrecognized arguments: --keep-on"),
        ("    anncestry compare A [B] [--noise PCT]\n    anncestry drop CELL… --yes", 0, ""),
        ("`anncestry compare`, `anncestry --experiment X add dataset`, `anncestry COMMAND --help`", 0, ""),
        ("`anncestry guard … --kees` and anncestry itself\n\n    content: {}  # anncestry writes it", 0, ""),
        ("    cd ~/anncestry && make all | anncestry why NUMBER --json > out", 0, ""),
    ],
)
def test_what_counts_as_a_command_and_what_is_refused(text: str, line: int, why: str) -> None:
    found = list(faults(text))
    assert len(found) == bool(why) and all(at == line and why in said for at, said in found), found


def test_a_comment_of_the_config_is_looked_at_its_values_are_not() -> None:
    text = "# `anncestry plan\n# --fast` says\nwhy: anncestry plan --fast # anncestry plan --fast\n"
    assert [line for line, _ in faults(text, of_config=True)] == [1]


def test_there_are_many_to_look_at() -> None:
    texts = ((ROOT / file).read_text() for file in FILES if file.endswith(".md"))
    found = [words for text in texts for _, snippet in written(text) for words in commands(snippet, "anncestry")]
    assert sum(len(words) > 1 for words in found) > 100
