"""A history as text for the terminal: what changed and where lines break; the page shows the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tabulate import tabulate  # type: ignore[import-untyped]

from anncestry.report.history.lines import Change, History, Line
from anncestry.report.model.cells import NO_CELL, text_of

_HEAD = ("since", "commit", "of", "quantity", "before", "after", "", "also new", "why")


def opening(history: History) -> str:
    """How many lines of how many commits, and how often they change and break."""
    first, last = history.commits[0].at[:10], history.commits[-1].at[:10]
    changed = sum(len(line.changes) for line in history.lines)
    broken = sum(len(line.breaks) for line in history.lines)
    return (
        f"{_counted(len(history.lines), 'line')} of {history.experiment} over "
        f"{_counted(len(history.commits), 'commit')}, {first} to {last}: {_counted(changed, 'change')}, "
        f"{_counted(broken, 'break')}."
    )


def summary(history: History) -> str:
    """The history as text, ending in a newline."""
    parts = [opening(history)]
    if told := list(rows(history)):
        parts.append(tabulate([(*each.cells, each.number) for each in told], _HEAD, disable_numparse=True))
    if ended := list(breaks(history)):
        said = (f"{at} {commit}: the line ends: {reason} ({where})" for at, commit, reason, where in ended)
        parts.append("\n".join(said))
    if out := left_out(history):
        parts.append("\n".join(f"left out: {at} {commit}: {reason}" for at, commit, reason in out))
    return "\n\n".join(parts) + "\n"


class Told(NamedTuple):
    """A change as cells of a table, those that `_HEAD` names but the last; the number since then, and its commit."""

    cells: tuple[str, ...]
    number: str
    commit: str


def rows(history: History) -> Iterator[Told]:
    """The changes, the oldest first."""
    found = [(line, change) for line in history.lines for change in line.changes]
    for line, change in sorted(found, key=lambda each: each[0].points[each[1].place].commit.at):
        point = line.points[change.place]
        facts = "; ".join(f"{what} {before} → {after}" for what, before, after in change.facts)
        shown = [text_of(value, None, line.unit) for value in (change.before, change.after)]
        place = (point.commit.at[:10], point.commit.commit[:8], line.place, quantity(line))
        yield Told((*place, *shown, words(change), facts or NO_CELL), str(point.row["number_id"]), point.commit.commit)


def words(change: Change) -> str:
    """The factor of a change, and the word for it."""
    return f"× {change.ratio:.3f} {change.said}" if change.ratio else change.said


def quantity(line: Line) -> str:
    """A line's metric with its unit, and the phase of a load that it is of."""
    return ", ".join(filter(None, (f"{line.name[-1]} ({line.unit})", line.during)))


def breaks(history: History) -> list[tuple[str, str, str, str]]:
    """Each reason for which lines end at a commit: day, commit, reason, of which lines."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for line in history.lines:
        for each in line.breaks:
            commit = line.points[each.place].commit
            found.setdefault((commit.at[:10], commit.commit[:8], each.reason), []).append(line.place)
    return [(*key, _some(list(dict.fromkeys(places)))) for key, places in sorted(found.items())]


def left_out(history: History) -> list[tuple[str, str, str]]:
    """Commits whose results can't be read: day, commit, reason."""
    return [(commit.at[:10], commit.commit[:8], reason) for commit, reason in history.left_out]


def _some(places: list[str]) -> str:
    return places[0] + (f" and {len(places) - 1} more" if places[1:] else "")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
