"""`anncestry`: measure one server, read and check results, add to the config; or run one rule of the workflow.

A command of a rule takes the key of its output. The Snakefile sets ANNCESTRY_CONFIG and ANNCESTRY_EXPERIMENT, which
name the matrix of that key; the default is the default experiment.
Exit status: 0 done; 2 an error that the user can fix, in one sentence; 1 a bug in this program; 141 the reader of its
output closed the pipe (128 + SIGPIPE, as a shell reports it of other programs).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from anncestry import redact
from anncestry.commands import (
    Run,
    benching,
    cells,
    command,
    guarding,
    init,
    own,
    preview,
    results,
    rules,
    systems,
)
from anncestry.commands.rules import RULES
from anncestry.errors import Damaged, DataError, UserError, of_machine, of_package, plain
from anncestry.provenance import damage, running

ONLY_LOG = "ANNCESTRY_ONLY_LOG"
"""In the environment of a command with a log: it writes there only, because somebody else shows the run."""


GROUPS: dict[str, tuple[str, ...]] = {
    "read results": ("summary", "compare", "history", "why", "preview"),
    "check and share results": ("verify", "keep", "attest", "verify-attestation", "export"),
    "measure": ("plan", "cells", "bench", "guard", "drop", "epochs", "withdraw"),
    "own data and systems": ("init", "add", "systems", "engine-check"),
    "this machine": ("leftovers", "gc", "engine", "completion"),
    "called by the rules of the workflow": tuple(RULES),
}
"""The commands by what people do with them, in the order of the help."""


class _ByTask(argparse.HelpFormatter):
    """Lists the commands by group, as argparse can't."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction) or action.metavar != "COMMAND":
            return super()._format_action(action)
        helps = {each.dest: each for each in action._choices_actions}
        parts = []
        for title, names in GROUPS.items():
            parts.append(f"{' ' * self._current_indent}{title}:\n")
            self._indent()
            parts += [super(_ByTask, self)._format_action(helps[name]) for name in names]
            self._dedent()
        return "\n" + "".join(parts)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="anncestry", description=__doc__.split("\n", 1)[0], formatter_class=_ByTask)
    parser.add_argument("--experiment", help="use config/experiments/NAME.yaml instead of the default experiment")
    parser.add_argument("--log", type=Path, help="also write all messages to this file")
    parser._positionals.title = "commands"
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in (init, own, systems, benching, guarding, results, preview, cells, rules):
        group.add(commands)
    command(commands, completion).add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")
    return parser


def completion(run: Run, options: argparse.Namespace) -> None:
    """Print a script that completes commands: eval "$(anncestry completion bash)" (docs/commands.md has all shells)."""
    import shtab

    print(shtab.complete(parser(), options.shell))


def _note_time(command: str, started: float) -> None:
    """Append when this command ran to the file that ANNCESTRY_TIMELINE names, if it names one (`make bench` does)."""
    timeline = os.environ.get("ANNCESTRY_TIMELINE")
    if timeline:
        with open(timeline, "a") as file:
            file.write(json.dumps({"command": command, "start": started, "end": time.time()}) + "\n")


class _Plain:
    """A stream that hides secrets and escapes control characters, so that data can't command a terminal.

    It keeps a leading carriage return, which progress lines need, and escapes characters that it can't encode.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]

    def write(self, text: str) -> int:
        first = "\r" if text.startswith("\r") else ""
        self._stream.write(first + plain(redact.text(text.removeprefix(first))))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def silence(self) -> None:
        """Send what is left in the buffer to nowhere, so that the interpreter finds nothing to fail at when it ends."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)

    def settle(self) -> None:
        """Write what is left in the buffer; a failure changes no status any more."""
        try:
            self._stream.flush()
        except OSError:
            self.silence()


class _Out(_Plain):
    """Standard output. A reader that has gone ends the command; a broken pipe of anything else stays an error."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise self._gone() from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def _gone(self) -> SystemExit:
        """The way out by an exception, so that every server is stopped on it."""
        self.silence()
        return SystemExit(128 + signal.SIGPIPE)


class _Tee(_Plain):
    """Standard error and a log file at once. If one fails, the command goes on with the other."""

    log: TextIO | None = None

    def write(self, text: str) -> int:
        with suppress(OSError):  # a full disk: standard error still works
            if self.log is not None:
                self.log.write(plain(redact.text(text.replace("\r", "\n"))))
                self.log.flush()
        if self.log is None or ONLY_LOG not in os.environ:
            with suppress(OSError):  # the reader is gone, for example a killed run
                super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def close_log(self) -> None:
        log, self.log = self.log, None
        if log is not None:
            with suppress(OSError):
                log.close()


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end_tidily(number: int, frame: object) -> None:
    """Leave by an exception, so that every server is stopped on the way out: which no second signal cuts short."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _work(options: argparse.Namespace, program: list[str] | None) -> None:
    run = Run(options.experiment, program)
    try:
        options.function(run, options)
    except Damaged as error:
        said = damage.mend_one(run.matrix, error) if options.command in RULES else []
        raise DataError("\n".join(said) or str(error)) from None


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup, and a shell's `&`, have it
                    stack.callback(signal.signal, number, signal.signal(number, _end_tidily))
        out, err = sys.stdout, sys.stderr
        stack.callback(setattr, sys, "stdout", out)
        stack.callback(setattr, sys, "stderr", err)
        said, shown = _Tee(err), _Out(out)
        sys.stdout, sys.stderr = cast(TextIO, shown), cast(TextIO, said)
        stack.callback(said.settle)
        stack.callback(shown.settle)
        options = parser().parse_args(arguments)
        stack.callback(_note_time, options.command, time.time())
        try:
            if options.log:
                options.log.parent.mkdir(parents=True, exist_ok=True)
                said.log = open(options.log, "w", errors="backslashreplace")  # noqa: SIM115 - closed by the stack
                stack.callback(said.close_log)
            if options.command in RULES:
                running.end_with_run()
            _work(options, sys.argv[1:] if arguments is None else None)
            sys.stdout.flush()
        except UserError as error:
            print(f"anncestry {options.command}: {error}", file=sys.stderr)
            return 2
        except ModuleNotFoundError as error:
            sentence = of_package(error)
            if sentence is None:
                traceback.print_exc()
            print(f"anncestry {options.command}: {sentence or error}", file=sys.stderr)
            return 1 if sentence is None else 2
        except KeyboardInterrupt:
            print(f"anncestry {options.command}: interrupted", file=sys.stderr)
            return 130
        except OSError as error:
            sentence = of_machine(error)
            if sentence is None:
                traceback.print_exc()
            print(f"anncestry {options.command}: {sentence or error}", file=sys.stderr)
            return 1 if sentence is None else 2
        except Exception:
            traceback.print_exc()
            return 1
    return 0
