"""Write docs/commands.md, the reference of the commands, from their parser (make references)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from anncestry import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
HEAD = """# Commands

This page lists every command with its arguments, what they mean, and what a command's exit status says.

`make references` writes it from the parser; a test fails if it is out of date. `anncestry COMMAND --help`
prints the same.

A shell completes commands and options after this line, best in the file that it reads when it starts:

| shell | line | file |
| --- | --- | --- |
| bash | `eval "$(anncestry completion bash)"` | `~/.bashrc` |
| zsh | `eval "$(anncestry completion zsh)"`, after `autoload -U compinit; compinit` | `~/.zshrc` |
| fish | `anncestry completion fish \\| source` | `~/.config/fish/config.fish` |

Two options stand before the command: `--experiment NAME` takes `config/experiments/NAME.yaml` instead of the default
experiment (`anncestry --experiment smoke why …`), and `--log FILE` also writes all messages to a file.

| exit status | means |
| --- | --- |
| 0 | done |
| 1 | a bug in anncestry |
| 2 | an error that you can fix, with one sentence that names it |
| 3 | `guard` found a regression, a gate failed in `bench`, or `engine-check` failed |
| 4 | `guard` can't tell |
| 130, 141 | you interrupted the command; the reader of its output closed it |

With `--json`, a command prints its table as JSON. Names are those of the page or of the records, with units in them.
Times are in seconds and sizes in bytes; null stands for an unknown value.

## Which config, and which variables

A command takes the config of the folder `ANNCESTRY_CONFIG`; else that of `config/` in the current folder, if it holds
`config.yaml`; else the one that comes with the package. These variables change what commands do:

| variable | what it says | described in |
| --- | --- | --- |
| `ANNCESTRY_CONFIG` | the folder of the config | this page |
| `ANNCESTRY_EXPERIMENT` | the experiment, where `--experiment` names none | this page |
| `XDG_CACHE_HOME` | downloads and builds go to `anncestry` in this folder (default: `~/.cache`) | this page |
| `ANNCESTRY_NETWORK` | `host`: servers use the machine's own network | [security](../SECURITY.md) |
| `ANNCESTRY_ADDRESS` | the address at which clients on other machines reach the servers | [clusters](cluster.md) |
| `ANNCESTRY_MEASURE_LOCK` | the file that makes measurements wait for each other | [clusters](cluster.md) |
| `ANNCESTRY_KUBERNETES` | the folder of the manifests of Kubernetes | [clusters](cluster.md) |

Addresses and passwords of remote servers, and the folders of storage paths, come from variables that the config names
([containers](containers.md), [storage](storage.md)).
"""
RULES = """`KEY` is the key of the output. A `FILE` takes the place of the one that the matrix has
([stages and files](architecture.md#stages-and-files))."""


def page() -> str:
    """The whole page, as Markdown."""
    (commands,) = [each for each in cli.parser()._actions if isinstance(each, argparse._SubParsersAction)]
    helps = {each.dest: each.help or "" for each in commands._choices_actions}
    sections = [HEAD.strip()]
    for title, names in cli.GROUPS.items():
        sections.append(f"## {title[0].upper()}{title[1:]}")
        if names == tuple(cli.RULES):
            sections += [RULES, "\n".join(_rules({name: commands.choices[name] for name in names}, helps))]
            continue
        for name in names:
            sections += _command(f"anncestry {name}", commands.choices[name], helps[name])
    return "\n\n".join(sections) + "\n"


def _command(name: str, parser: argparse.ArgumentParser, help_: str) -> Iterator[str]:
    yield f"### {name}"
    yield help_.replace("%%", "%")
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._SubParsersAction):
            inner = {each.dest: each.help or "" for each in action._choices_actions}
            for kind, of_kind in action.choices.items():
                yield from _command(f"{name} {kind}", of_kind, inner[kind])
            continue
        rows.append(f"| `{_form(action).replace('|', chr(92) + '|')}` | {_meaning(action)} |")
    if rows:
        yield "\n".join(["| argument | meaning |", "| --- | --- |", *rows])


def _rules(parsers: Mapping[str, argparse.ArgumentParser], helps: Mapping[str, str]) -> Iterator[str]:
    """A row for each command of a rule."""
    yield from ("| command | does | arguments |", "| --- | --- | --- |")
    for name, parser in parsers.items():
        forms = [_form(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        optional = [f"[{form}]" if form.startswith("--") else form for form in forms]
        yield f"| `{name}` | {helps[name]} | `{' '.join(optional)}` |"


def _form(action: argparse.Action) -> str:
    """How an argument is written."""
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    value = action.metavar if isinstance(action.metavar, str) else ""
    if not value:
        value = f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper()
    if isinstance(action.metavar, tuple):
        value = " ".join(action.metavar)
    value += " …" if action.nargs in ("+", "*") else ""
    if not action.option_strings:
        return f"[{value}]" if action.nargs in ("?", "*") else value
    return f"{', '.join(action.option_strings)} {value}"


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%").replace("|", "\\|")
    return f"{text} (required)".strip() if action.required and action.option_strings else text


if __name__ == "__main__":
    PAGE.write_text(page())
