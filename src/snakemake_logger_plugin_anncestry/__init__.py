"""`snakemake --logger anncestry`: one calm view of the run instead of a log (`anncestry.board`).

The whole log is in Snakemake's own file (.snakemake/log), which is named at the end; that of each job is in logs/.
Without a terminal, a line is printed for each measurement that starts, and what failed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from anncestry.board import MEASURING, Board, logged, seconds_of
from anncestry.cli import ONLY_LOG

PREVIEW = "ANNCESTRY_PREVIEW"
"""Tells sessions that somebody looks, so that a page of what is measured so far is worth drawing."""


_TOLD = ("Terminating processes", "Will exit", "Shutting down", "Trying to restart")
"""How what Snakemake says begins when it stops, or tries again: it may take a while."""


_WHOLE_LOG = "Complete log(s): "
"""How Snakemake says at the end of a run where its whole log is."""


def _is_told(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.getMessage().startswith(_TOLD)


class LogHandler(LogHandlerBase):
    """Shows the board; everything else that matters is printed above it."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        # By the file alone: FORCE_COLOR, which CI sets, makes no terminal of a log.
        self._console = Console(file=sys.stderr, highlight=False, force_terminal=sys.stderr.isatty())
        self._board: Board | None = None
        self._live: Live | None = None
        self._shown_ns = 0
        """When the page of what is measured so far was drawn that was told of last."""
        self._plain = self.common_settings.dryrun
        if not self._plain:
            os.environ |= {ONLY_LOG: "1", PREVIEW: "1"}

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        try:
            if self._plain:
                if text := self.format(record):
                    print(text, file=sys.stderr)
            elif event == LogEvent.RUN_INFO:
                self._start()
            elif event == LogEvent.JOB_INFO:
                self._begun(record)
            elif event == LogEvent.JOB_FINISHED:
                self._ended(record.__dict__["job_id"])
            elif event == LogEvent.JOB_ERROR:
                self._failed(record.__dict__["jobid"])
            elif event == LogEvent.ERROR or (event is None and _is_told(record)):
                self._print(record.getMessage())
            elif event is None and record.getMessage().startswith("Nothing to be done"):
                self._nothing_to_do()
            elif event is None and record.getMessage().startswith(_WHOLE_LOG):
                self._tell_log(Path(record.getMessage().removeprefix(_WHOLE_LOG)))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        super().close()

    def _start(self) -> None:
        from anncestry import workflow
        from anncestry.provenance import estimate, explain

        matrix, plan = workflow.resolve(workflow.choice_of_environment(), Path.cwd())
        jobs = explain.jobs(matrix, plan)
        guesses = {each.rule: each.seconds for each in estimate.estimate(matrix, jobs, explain.Earlier())}
        self._shown_ns = time.time_ns()  # not one of an earlier run
        self._board = Board(plan, jobs, seconds_of(guesses, jobs))
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            draw = self._board.draw
            # Seldom, as it is drawn while others measure: a view costs some milliseconds.
            self._live = Live(console=self._console, get_renderable=draw, refresh_per_second=0.5, redirect_stdout=False)
            self._live.start()
        else:
            self._print(self._board.headline)

    def _nothing_to_do(self) -> None:
        """Say where the page is, as Snakemake runs nothing of the workflow's that would (`onsuccess`)."""
        from anncestry import workflow
        from anncestry.commands import results

        self._print("everything is up to date")
        matrix, _ = workflow.resolve(workflow.choice_of_environment(), Path.cwd())
        if Path(matrix.report_path).exists():
            self._print(f"page: {results.current_page(matrix)}")

    def _begun(self, record: logging.LogRecord) -> None:
        job: dict[str, Any] = record.__dict__
        if self._board is None:
            return
        log = Path(str(job["log"][0])) if job["log"] else None
        message = str(job["rule_msg"] or job["rule_name"])
        self._board.begin(job["jobid"], job["rule_name"], [str(path) for path in job["output"]], message, log)
        if self._live is None and job["rule_name"] in MEASURING:
            self._print(f"{message} ({self._board.headline})")

    def _ended(self, number: int) -> None:
        if self._board is None:
            return
        self._board.end(number)
        self._tell_page(Path(self._board.matrix.so_far_path))
        if self._board.done == len(self._board.jobs) and self._live is not None:
            self._live.stop()
            self._live = None

    def _tell_page(self, page: Path) -> None:
        """Say where a page of what is measured so far lies, whenever there is a new one."""
        drawn_ns = page.stat().st_mtime_ns if page.exists() else 0
        if drawn_ns > self._shown_ns:
            self._shown_ns = drawn_ns
            self._print(f"a page of what is measured so far: {page}")

    def _tell_log(self, path: Path) -> None:
        here = Path.cwd()
        self._print(f"the whole log of this run: {path.relative_to(here) if path.is_relative_to(here) else path}")

    def _failed(self, number: int) -> None:
        job = None if self._board is None else self._board.end(number, failed=True)
        if job is None:
            return
        self._print(f"failed: {job.message}")
        for line in logged(job.log):
            self._print(f"    {line}")
        if job.log is not None:
            self._print(f"    its whole log: {job.log}")

    def _print(self, text: str) -> None:
        """Above the view; without one, with the time."""
        if self._console.is_terminal:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
